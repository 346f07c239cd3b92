# The studio for a class: one machine serves it, browsers open it. Weights come into the image once; a running container
# needs no network.
#
#     docker build --tag manyheads .
#     docker run --rm --publish 8765:8765 manyheads     # prints the address with its token: hand it to the class
#
# Where torch's builds for a CPU are on another index, name it: --build-arg PIP_EXTRA_INDEX_URL=ADDRESS. The default
# build is gigabytes larger.
FROM python:3.12-slim

ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

RUN useradd --create-home --uid 1000 learner
WORKDIR /opt/manyheads
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY src ./src

# torch first and alone, then the versions that the tests run on.
RUN pip install torch==2.13.0 && pip install --constraint requirements.lock ".[studio]"

USER 1000
WORKDIR /home/learner
RUN manyheads fetch

ENV HF_HUB_OFFLINE=1
EXPOSE 8765
CMD ["manyheads", "studio", "--host", "0.0.0.0", "--port", "8765", "--no-browser"]
