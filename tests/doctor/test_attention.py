"""The chooser's own words are told, and numbers that are not NumPy's are found out."""

from collections.abc import Callable

import pytest
import torch

from manyheads.doctor import FINE, WRONG, attention
from manyheads.doctor.attention import CASES, arguments, backends
from manyheads.nn import attend
from manyheads.nn.attention import Attended

CPU = torch.device("cpu")
SMALL = [case for case in CASES if case.tokens < 100]


def test_every_case_is_told_in_the_words_of_the_chooser_and_lies_by_numpy():
    found = {each.subject: each for each in backends() if "cpu" in each.found or " on " not in each.subject}
    assert [each.line for each in found.values() if each.state != FINE] == []
    for case in SMALL:
        q, k, v, options = arguments(case, CPU)
        because = attend(q, k, v, **options).because
        assert found[case.about].found.startswith(f"{because}; ") and "from NumPy" in found[case.about].found
    assert {each.found.partition(":")[0] for each in found.values()} >= {"fused", "tiles"}
    assert "scaled_dot_product_attention" in found["a layer's dropout"].found


def test_the_cases_differ_as_their_names_say():
    made = {case.about: arguments(case, CPU) for case in SMALL}
    assert made["grouped queries"][1].shape[1] < made["grouped queries"][0].shape[1]
    assert made["a gradient"][0].requires_grad and not made["a short text"][0].requires_grad
    assert made["bfloat16"][0].dtype == torch.bfloat16 and made["a float mask"][3]["bias"] is not None
    assert len({int(each) for each in made["padded texts"][3]["mask"].counts().amax(1)}) == 2


def with_results(change: Callable[[Attended], Attended]) -> Callable[..., Attended]:
    return lambda *inputs, **options: change(attend(*inputs, **options))


@pytest.mark.parametrize(
    "change",
    [
        lambda got: Attended(got.out * 1.001, got.lse, got.because),
        lambda got: Attended(got.out, got.lse + 0.001, got.because),
        lambda got: Attended(got.out * torch.nan, got.lse, got.because),
        lambda got: Attended(got.out.flip(1), got.lse, got.because),
    ],
    ids=["scaled", "lse", "NaN", "heads in another order"],
)
def test_wrong_numbers_are_found_in_every_float32_case(monkeypatch, change):
    monkeypatch.setattr(attention, "attend", with_results(change))
    monkeypatch.setattr(attention, "CASES", [case for case in SMALL if case.dtype == torch.float32])
    monkeypatch.setattr(attention, "devices", lambda: [CPU])
    found = [each for each in backends() if not each.subject.startswith("a layer")]
    assert len(found) == 6 and {each.state for each in found} == {WRONG}
    assert all("is allowed" in each.found and "Install torch anew" in each.remedy for each in found)


def test_a_case_that_fails_leaves_the_others(monkeypatch):
    def fails(q, *inputs, **options):
        if q.dtype == torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'\nand much more")
        return attend(q, *inputs, **options)

    monkeypatch.setattr(attention, "attend", fails)
    monkeypatch.setattr(attention, "CASES", SMALL)
    wrong = [each.line for each in backends() if each.state == WRONG]
    assert len(wrong) == 1
    assert wrong[0].startswith("bfloat16: failed with RuntimeError: not implemented for 'BFloat16'. ")
