# A model as a service, on a CPU. The model is not part of the image: mount it.
#
#     docker build -t medic .
#     docker run --rm -p 8000:8000 -e MEDIC_TOKEN=$TOKEN -v $PWD/runs/first:/model:ro --read-only --tmpfs /tmp medic
FROM python:3.11-slim

# The CPU build of torch; constraints.txt pins its version.
COPY constraints.txt pyproject.toml README.md LICENSE /src/
COPY medic /src/medic
RUN pip install --no-cache-dir -c /src/constraints.txt --index-url https://download.pytorch.org/whl/cpu torch torchvision \
 && pip install --no-cache-dir -c /src/constraints.txt '/src[serve]' \
 && rm -r /src \
 && useradd --system --uid 10001 medic

USER 10001
ENV PYTHONUNBUFFERED=1 MEDIC_CACHE=/tmp/medic
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
# exec form, so that the service itself receives SIGTERM
ENTRYPOINT ["medic", "serve", "/model", "--host", "0.0.0.0", "--device", "cpu"]
