"""A studio that serves, in a thread of the test's process, and how to ask it: plain HTTP, nothing of the page's."""

import http.client
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import manyheads as mh
from manyheads.roles import PageLabels
from manyheads.studio import StudioSession, Workspace, bind
from manyheads.studio.server.serve import server_of
from manyheads.studio.views.maps import MEDIA_TYPE, unpack
from tests.models.tiny import save_tiny, tiny_llama, tiny_tokenizer
from tests.watching.histories import begun

TEXT = "The cat sat on the mat because it was tired, and the dog that saw the cat sat down beside it."


class Said(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def arrays(self):
        assert self.headers["content-type"] == MEDIA_TYPE
        return unpack(self.body)


class Studio:
    """`ask("GET", "/api/workspace")`; `job("POST", ...)` waits for the job that it began."""

    def __init__(self, desk: StudioSession, port: int) -> None:
        self.desk, self.port, self.address = desk, port, f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Said:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            said = {"content-type": "application/json"} if body is not None else {}
            connection.request(method, path, data, {**said, **(headers or {})})
            answer = connection.getresponse()
            return Said(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Said:
        return self.ask("GET", path)

    def job(self, path: str, body: Any = None) -> Any:
        """The job as it ended."""
        said = self.ask("POST", path, {} if body is None else body)
        assert said.status == 202, said
        job = said.json
        while job["state"] == "running":
            job = self.get(f"/api/jobs/{job['id']}?wait=5").json
        return job

    def open(self, text: str, model: str = "minilm", plan: Any = ()) -> Any:
        """The `RecordingInfo` of a text."""
        job = self.job("/api/recordings", {"model": model, "text": text, "plan": list(plan)})
        assert job["state"] == "done", job["problem"]
        return job["result"]


@contextmanager
def studio_of(workspace: Workspace):
    """A studio on a free port, stopped at the end."""
    desk = StudioSession(workspace)
    serving = bind(desk, port=0)
    server = server_of(serving)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [serving.socket]}, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    try:
        yield Studio(desk, serving.socket.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        desk.close()
        serving.socket.close()


@contextmanager
def minilm_studio(minilm: Any, folder: Path, labels: PageLabels | None = None):
    """A studio over a folder and the bundled model, loaded and perhaps labelled. It writes into `out` inside."""
    workspace = Workspace.of([folder], model="minilm", folder=folder / "out")
    workspace.loaded.put("minilm", minilm)
    with studio_of(workspace) as studio:
        if labels is not None:
            studio.desk.labels.known["minilm"] = labels
        yield studio


def save_mixed(folder: Path) -> Path:
    """Recordings, a checkpoint, a watched training, and what is none of these."""
    save_tiny(tiny_llama(2), folder / "tiny-llama", tiny_tokenizer())
    lm = mh.load(str(folder / "tiny-llama"))
    mh.record(lm, ["the cat sat on the mat", "the dog"]).save(folder / "two.heads")
    (folder / "damaged.heads").write_bytes((folder / "two.heads").read_bytes()[:2000])
    begun(folder / "heads.parquet").close()
    (folder / "secret.txt").write_text("nobody may read this")
    return folder
