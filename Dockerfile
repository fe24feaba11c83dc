# The controller with its lab. The lab makes namespaces: run it with
#   docker run --rm --cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add SYS_NICE \
#     --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined \
#     cluster-chaos run nvswitch
FROM python:3.11-slim
WORKDIR /opt/chaos
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY chaos chaos
COPY injectors injectors
COPY steady_state steady_state
COPY experiments experiments
RUN pip install --no-cache-dir -c constraints.txt '.[lab]'
WORKDIR /var/lib/chaos
ENTRYPOINT ["python", "-m", "chaos"]
CMD ["--help"]
