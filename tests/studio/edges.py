"""What of a page lies past the window's left or right edge, where nobody sees it without scrolling sideways."""

PAST = """() => [...document.querySelectorAll(".manyheads *")].filter((each) => {
  const { left, right, width, height } = each.getBoundingClientRect();
  const past = width && height && (right > innerWidth + 1 || left < -1);
  return past && !each.closest("figure, pre, table, svg, .ruler, .sr-only");
}).map((each) => `${each.tagName} ${each.getAttribute("class")} ${each.textContent.trim().slice(0, 30)}`)"""
"""Left out: what scrolls in a frame of its own (matrices, drawings, code, tables), rulers, whose labels lean out."""


def assert_nothing_past_the_edge(page, where=""):
    found = page.evaluate(PAST)
    assert not found, f"{where}: {len(found)} past the edge: {found[:8]}"
    inside = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert inside[0] <= inside[1], f"{where}: the page is {inside[0]} pixels wide in a window of {inside[1]}"
