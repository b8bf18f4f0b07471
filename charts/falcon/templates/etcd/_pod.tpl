{{- /* The pod of a member. One member is a Deployment's: it is known by the names of its Services, whichever node it is on.
Of several, each has a name of its own and keeps it, as a StatefulSet's pods do. */ -}}
{{- define "falcon.etcd.pod" -}}
{{- $name := include "falcon.etcd.fullname" . -}}
{{- $domain := printf "%s.%s.svc" (include "falcon.etcd.headless" .) .Release.Namespace -}}
{{- $single := eq (int .Values.etcd.replicas) 1 -}}
{{- $self := ternary $name "$(POD_NAME)" $single -}}
{{- $clientHost := ternary (include "falcon.etcd.serverName" .) (printf "$(POD_NAME).%s" $domain) $single -}}
{{- $peerHost := ternary $domain (printf "$(POD_NAME).%s" $domain) $single -}}
{{- $members := list (printf "%s=https://%s:2380" $name $peerHost) -}}
{{- if not $single -}}
{{- $members = list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $members = append $members (printf "%s-%d=https://%s-%d.%s:2380" $name $i $name $i $domain) -}}
{{- end -}}
{{- end -}}
metadata:
  labels: {{- include "falcon.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/component: etcd
    {{- with .Values.etcd.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    kubectl.kubernetes.io/default-container: etcd
    {{- with .Values.etcd.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false  # a Service's variables (FALCON_ETCD_…) would look like etcd's own
  securityContext: {{- include "falcon.podSecurityContext" . | nindent 4 }}
  {{- with .Values.images.pullSecrets }}
  imagePullSecrets: {{- range . }}
  - name: {{ . }}
  {{- end }}
  {{- end }}
  {{- $movable := dict "tolerations" (include "falcon.tolerations" .Values.etcd | fromJsonArray) }}
  {{- with include "falcon.placement" (ternary (merge $movable .Values.etcd) .Values.etcd $single) }}{{ . | nindent 2 }}{{ end }}
  affinity:
    {{- with .Values.etcd.affinity }}{{ toYaml . | nindent 4 }}{{ else }}
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
      - {{ include "falcon.apartFromJobs" . | nindent 8 | trim }}
      {{- if not $single }}
      requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "falcon.selectorLabels" . | nindent 12 }}
            app.kubernetes.io/component: etcd
      {{- end }}
    {{- end }}
  containers:
  - name: etcd
    image: {{ include "falcon.image" (dict "root" . "name" "etcd") }}
    imagePullPolicy: {{ .Values.images.pullPolicy }}
    securityContext: {{- include "falcon.containerSecurityContext" . | nindent 6 }}
    command: [etcd]
    args:
    - --name={{ $self }}
    - --data-dir=/var/lib/etcd/data
    - --listen-client-urls=https://0.0.0.0:2379
    - --advertise-client-urls=https://{{ $clientHost }}:2379
    - --listen-peer-urls=https://0.0.0.0:2380
    - --initial-advertise-peer-urls=https://{{ $peerHost }}:2380
    - --initial-cluster={{ join "," $members }}
    - --initial-cluster-token={{ .Release.Namespace }}-{{ $name }}
    - --initial-cluster-state=new
    - --listen-metrics-urls=http://0.0.0.0:2381
    - --cert-file=/etc/etcd/tls/tls.crt
    - --key-file=/etc/etcd/tls/tls.key
    - --trusted-ca-file=/etc/etcd/tls/ca.crt
    - --client-cert-auth=true
    - --peer-cert-file=/etc/etcd/tls/tls.crt
    - --peer-key-file=/etc/etcd/tls/tls.key
    - --peer-trusted-ca-file=/etc/etcd/tls/ca.crt
    - --peer-client-cert-auth=true
    # operator and gateways hold a certificate of the same authority: only a server's may speak as a member
    - --peer-cert-allowed-hostname={{ include "falcon.etcd.serverName" . }}
    - --tls-min-version=TLS1.2
    # etcd's own JSON gateway would call with the server's own identity
    - --enable-grpc-gateway=false
    - --auto-compaction-mode=periodic
    - --auto-compaction-retention={{ .Values.etcd.autoCompactionRetention }}
    - --quota-backend-bytes={{ .Values.etcd.quotaBackendBytes | int64 }}
    - --log-level=warn
    env:
    {{- include "falcon.noProxyEnv" . | nindent 4 }}
    {{- if not $single }}
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    {{- end }}
    ports:
    - {name: client, containerPort: 2379}
    - {name: peer, containerPort: 2380}
    - {name: metrics, containerPort: 2381}
    livenessProbe:
      httpGet: {path: /livez, port: metrics}
      initialDelaySeconds: 10
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: 8
    readinessProbe:
      httpGet: {path: /readyz, port: metrics}
      periodSeconds: 2
      timeoutSeconds: 5
    resources: {{- toYaml .Values.etcd.resources | nindent 6 }}
    volumeMounts:
    - {name: data, mountPath: /var/lib/etcd}
    - {name: tls, mountPath: /etc/etcd/tls, readOnly: true}
  volumes:
  # made by the operator at its first start: until then the pod waits here
  - name: tls
    secret:
      secretName: {{ include "falcon.etcd.secretPrefix" . }}-server
      defaultMode: 0440
  {{- if not .Values.etcd.persistence.enabled }}
  # a defragmentation writes what is left into a second file, and the log takes its part; a kubelet that finds more than this evicts the pod
  - name: data
    emptyDir: {sizeLimit: {{ div (.Values.etcd.quotaBackendBytes | int64) 524288 | add 1024 }}Mi}
  {{- else if $single }}
  - name: data
    persistentVolumeClaim: {claimName: {{ $name }}}
  {{- end }}
{{- end -}}
