# The chart. Any Kubernetes version above the chart's least one renders the same; one is named so that none is guessed.
CHART := charts/falcon
CHART_KUBE_VERSION := 1.36

.PHONY: chart-lint chart-package
chart-lint: cluster-build ## helm lint --strict: the chart with its defaults and with the local cluster's values
	@helm lint --quiet --strict --kube-version $(CHART_KUBE_VERSION) $(CHART)
	@helm lint --quiet --strict --kube-version $(CHART_KUBE_VERSION) -f dev/values-local.yaml $(CHART)

chart-package: ## the chart as an archive under FALCON_CACHE/charts
	@mkdir -p $(FALCON_CACHE)/charts
	@helm package --destination $(FALCON_CACHE)/charts $(CHART)
