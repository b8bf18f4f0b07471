{{- define "falcon.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "falcon.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "falcon.labels" -}}
{{ include "falcon.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "falcon.serviceAccountName" -}}
{{- default (include "falcon.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- /* (dict "root" . "name" "operator") -> registry/repository:tag or @digest */ -}}
{{- define "falcon.image" -}}
{{- $image := index .root.Values.images .name -}}
{{- with .root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default .root.Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{- /* The variable with what the platform lays over the table of error classes; nothing where it lays nothing. */ -}}
{{- define "falcon.errors" -}}
{{- with .Values.operator.errors -}}
{{- if or .classes .rules .benign .disabled -}}
- name: FALCON_ERRORS
  value: {{ toJson . | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Not empty where the operator judges evictions; `helm upgrade --reuse-values` from a release without it: as the default. */ -}}
{{- define "falcon.webhook.enabled" -}}
{{- if (dig "evictionWebhook" "enabled" true .Values.operator) }}true{{ end -}}
{{- end -}}

{{- define "falcon.webhook.fullname" -}}
{{- include "falcon.fullname" . }}-webhook
{{- end -}}

{{- define "falcon.nodeAgent.fullname" -}}
{{- include "falcon.fullname" . }}-node
{{- end -}}

{{- define "falcon.anomalies.fullname" -}}
{{- include "falcon.fullname" . }}-anomalies
{{- end -}}

{{- /* The anomaly service's certificate. The Secret of a job ends in -falcon-gateway, so no job's name makes this one. */ -}}
{{- define "falcon.anomalies.secret" -}}
{{- include "falcon.anomalies.fullname" . }}-tls
{{- end -}}

{{- /* Where the operator asks for verdicts; empty where there is no anomaly service. */ -}}
{{- define "falcon.anomalies.address" -}}
{{- if .Values.anomalies.enabled }}{{ include "falcon.anomalies.fullname" . }}.{{ .Release.Namespace }}.svc:8443{{ end -}}
{{- end -}}

{{- /* The ConfigMap of what the anomaly service has learned; empty where it learns nothing. */ -}}
{{- define "falcon.anomalies.models" -}}
{{- if and .Values.anomalies.enabled .Values.anomalies.learning.enabled }}{{ include "falcon.fullname" . }}-anomaly-models{{ end -}}
{{- end -}}

{{- /* What the anomaly service asks of Prometheus, as JSON; empty where it asks nothing, or the values are of a release without it. */ -}}
{{- define "falcon.anomalies.prometheus" -}}
{{- with .Values.anomalies.prometheus -}}
{{- if and .url .queries }}{{ dict "url" .url "pods" .pods "queries" .queries | toJson }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "falcon.etcd.fullname" -}}
{{- include "falcon.fullname" . }}-etcd
{{- end -}}

{{- define "falcon.etcd.headless" -}}
{{- include "falcon.etcd.fullname" . }}-headless
{{- end -}}

{{- /* What members present to each other, and clients expect: the Service's name, resolvable from any namespace. */ -}}
{{- define "falcon.etcd.serverName" -}}
{{- include "falcon.etcd.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "falcon.etcd.secretPrefix" -}}
{{- if .Values.etcd.enabled }}{{ include "falcon.etcd.fullname" . }}{{ else }}{{ .Values.etcd.external.secretPrefix }}{{ end -}}
{{- end -}}

{{- /* Names that the operator writes into the server certificate. */ -}}
{{- define "falcon.etcd.serverNames" -}}
{{- $service := include "falcon.etcd.fullname" . -}}
{{- $headless := printf "%s.%s.svc" (include "falcon.etcd.headless" .) .Release.Namespace -}}
{{- list (include "falcon.etcd.serverName" .) (printf "%s.%s" $service .Release.Namespace) $service $headless (printf "*.%s" $headless) "localhost" | join "," -}}
{{- end -}}

{{- define "falcon.etcd.endpoints" -}}
{{- if not .Values.etcd.enabled -}}
{{- join "," .Values.etcd.external.endpoints -}}
{{- else if eq (int .Values.etcd.replicas) 1 -}}
https://{{ include "falcon.etcd.serverName" . }}:2379
{{- else -}}
{{- $endpoints := list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $endpoints = append $endpoints (printf "https://%s-%d.%s.%s.svc:2379" (include "falcon.etcd.fullname" $) $i (include "falcon.etcd.headless" $) $.Release.Namespace) -}}
{{- end -}}
{{- join "," $endpoints -}}
{{- end -}}
{{- end -}}

{{- /* How long etcd keeps history: 2h -> 7200 */ -}}
{{- define "falcon.etcd.retentionSeconds" -}}
{{- $retention := .Values.etcd.autoCompactionRetention -}}
{{- mul (regexFind "^[0-9]+" $retention) (get (dict "s" 1 "m" 60 "h" 3600) (regexFind "[smh]$" $retention)) -}}
{{- end -}}

{{- /* etcd.persistence -> the spec of a member's PersistentVolumeClaim */ -}}
{{- define "falcon.etcd.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .size }}}}
{{- end -}}

{{- define "falcon.gateway.fullname" -}}
{{- include "falcon.fullname" . }}-gateway
{{- end -}}

{{- /* The labels of etcd's pods, as `kubectl get --selector` reads them. */ -}}
{{- define "falcon.etcd.selector" -}}
{{- $labels := list "app.kubernetes.io/component=etcd" -}}
{{- range $key, $value := include "falcon.selectorLabels" . | fromYaml }}{{ $labels = append $labels (printf "%s=%s" $key $value) }}{{ end -}}
{{- join "," $labels -}}
{{- end -}}

{{- /* The labels of the gateways' pods, as `kubectl get --selector` reads them. */ -}}
{{- define "falcon.gateway.selector" -}}
{{- $labels := list "app.kubernetes.io/component=gateway" -}}
{{- range $key, $value := include "falcon.selectorLabels" . | fromYaml }}{{ $labels = append $labels (printf "%s=%s" $key $value) }}{{ end -}}
{{- join "," $labels -}}
{{- end -}}

{{- /* The gateways' certificate. The Secret of a job ends in -falcon-gateway, so no job's name makes this one. */ -}}
{{- define "falcon.gateway.secret" -}}
{{- include "falcon.gateway.fullname" . }}-tls
{{- end -}}

{{- /* What a gateway presents, and agents and operator expect: the Service's name, resolvable from any namespace. */ -}}
{{- define "falcon.gateway.serverName" -}}
{{- include "falcon.gateway.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- /* (dict "root" . "component" "operator") -> a peer of a NetworkPolicy: that component of this release */ -}}
{{- define "falcon.peer" -}}
podSelector:
  matchLabels: {{- include "falcon.selectorLabels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* The ClusterRole whose subjects may read /metrics; empty where every client may. `helm upgrade --reuse-values` from a
release without this value: as the default. */ -}}
{{- define "falcon.metrics.reader" -}}
{{- if dig "authentication" "enabled" false .Values.metrics }}{{ include "falcon.fullname" . }}-metrics-reader{{ end -}}
{{- end -}}

{{- /* What the operator presents to those who read its metrics by TLS: the name of their Service. */ -}}
{{- define "falcon.metrics.host" -}}
{{- include "falcon.fullname" . }}-metrics.{{ .Release.Namespace }}.svc
{{- end -}}

{{- /* What gateway and anomaly service need to ask the API server about tokens of their clients. */ -}}
{{- define "falcon.metrics.tokenEnv" -}}
- name: FALCON_METRICS_READER
  value: {{ include "falcon.metrics.reader" . | quote }}
- name: FALCON_SERVICE_ACCOUNT_DIR
  value: /var/run/secrets/kubernetes.io/serviceaccount
{{- end -}}

{{- /* (dict "root" . "secret" "falcon-gateway-tls" "host" "falcon-gateway.ns.svc") -> how a ServiceMonitor reads /metrics */ -}}
{{- define "falcon.metrics.endpoint" -}}
port: {{ include "falcon.metrics.reader" .root | empty | ternary "http" "https" }}
path: /metrics
interval: {{ .root.Values.metrics.serviceMonitor.interval }}
{{- if include "falcon.metrics.reader" .root }}
scheme: https
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
tlsConfig:
  serverName: {{ .host }}
  ca: {secret: {name: {{ .secret }}, key: ca.crt}}
{{- end }}
{{- end -}}

{{- /* (dict "root" . "port" "http") -> a rule of a NetworkPolicy: who reaches a port of health and metrics. The kubelet of a
pod's own node always does. */ -}}
{{- define "falcon.metricsRule" -}}
ports: [{port: {{ .port }}}{{ if and (eq .port "http") (include "falcon.metrics.reader" .root) }}, {port: https}{{ end }}]
from:
- {{ include "falcon.peer" (dict "root" .root "component" "test") | nindent 2 | trim }}
{{- /* `helm upgrade --reuse-values` from a release without this value: as the default. */ -}}
{{- $monitoring := list (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" "monitoring"))) }}
{{- with hasKey .root.Values.networkPolicy "metricsFrom" | ternary .root.Values.networkPolicy.metricsFrom $monitoring }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* A value that is null is left out of the map, so its field is not written. `helm upgrade --reuse-values` from a release
without these values: as the default. */ -}}
{{- define "falcon.podSecurityContext" -}}
runAsNonRoot: true
{{- $images := dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 }}
{{- range $field, $id := kindIs "map" .Values.securityContext | ternary .Values.securityContext $images }}
{{- if not (kindIs "invalid" $id) }}
{{ $field }}: {{ int64 $id }}
{{- end }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* As whom the containers run that Falcon adds to jobs' pods, as JSON. */ -}}
{{- define "falcon.injected.runAs" -}}
{{- $ids := dict -}}
{{- $image := dict "runAsUser" 65532 "runAsGroup" 65532 -}}
{{- range $field, $id := kindIs "map" .Values.injected.securityContext | ternary .Values.injected.securityContext $image -}}
{{- if not (kindIs "invalid" $id) }}{{ $_ := set $ids $field (int64 $id) }}{{ end -}}
{{- end -}}
{{- toJson $ids -}}
{{- end -}}

{{- define "falcon.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* nodeSelector, tolerations, priorityClassName of a component's values */ -}}
{{- define "falcon.placement" -}}
{{- $fields := dict -}}
{{- range $key := list "priorityClassName" "nodeSelector" "tolerations" -}}
{{- with get $ $key }}{{ $_ := set $fields $key . }}{{ end -}}
{{- end -}}
{{- with $fields }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- /* A component's tolerations as JSON: its values, and a short stay on a node that is lost (Kubernetes' own: 5 minutes),
unless the values name that taint themselves. */ -}}
{{- define "falcon.tolerations" -}}
{{- $tolerations := default list .tolerations -}}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $named := false -}}
{{- range $.tolerations }}{{ $named = or $named (eq $key (default "" .key)) }}{{ end -}}
{{- if not $named -}}
{{- $tolerations = append $tolerations (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 5) -}}
{{- end -}}
{{- end -}}
{{- toJson $tolerations -}}
{{- end -}}

{{- /* A preferred podAntiAffinity term: the faults that Falcon repairs strike the nodes of jobs. Spares and fenced nodes have
taints that keep these pods off. */ -}}
{{- define "falcon.apartFromJobs" -}}
weight: 100
podAffinityTerm:
  topologyKey: kubernetes.io/hostname
  namespaceSelector: {}
  labelSelector:
    matchExpressions:
    - {key: falcon.dev/job, operator: Exists}
{{- end -}}

{{- /* A pod of `helm test`: what its metadata has besides a name, and what its spec has besides containers. */ -}}
{{- /* Environment of programs that are not ours and speak inside the cluster alone: a proxy that a policy of the platform
names to all pods is for the world outside. Ours use none by themselves. */ -}}
{{- define "falcon.noProxyEnv" -}}
- {name: NO_PROXY, value: "*"}
- {name: no_proxy, value: "*"}
{{- end -}}

{{- define "falcon.testMetadata" -}}
labels: {{- include "falcon.labels" . | nindent 2 }}
  app.kubernetes.io/component: test
annotations:
  helm.sh/hook: test
  helm.sh/hook-delete-policy: before-hook-creation
{{- end -}}

{{- define "falcon.testPod" -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- include "falcon.podSecurityContext" . | nindent 2 }}
{{- with .Values.images.pullSecrets }}
imagePullSecrets: {{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with include "falcon.placement" .Values.operator }}{{ . | nindent 0 }}{{ end }}
{{- end -}}
