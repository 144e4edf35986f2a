{{- define "trunkline.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "trunkline.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trunkline.labels" -}}
{{ include "trunkline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "trunkline.secret" -}}
{{- if .Values.auth.existingSecret }}{{ .Values.auth.existingSecret }}{{ else if .Values.auth.tokens }}{{ include "trunkline.name" . }}-tokens{{ end }}
{{- end }}

{{- define "trunkline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "trunkline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Values that cannot work together, each with the way out. */}}
{{- define "trunkline.check" -}}
{{- $worker := .Values.worker }}
{{- range $key := list "listen" "metrics" "drain-timeout" "config" }}
{{- if hasKey $.Values.settings $key }}{{ fail (printf "settings.%s is set by the chart: leave it out" $key) }}{{ end }}
{{- end }}
{{- if ne $worker.mode "none" }}
{{- if not (or (include "trunkline.secret" .) .Values.settings.admin) }}
{{- fail "workers need a token: set auth.existingSecret, or auth.tokens and auth.workerToken; or let everyone attach with settings.admin=true" }}
{{- end }}
{{- if and .Values.auth.tokens (not .Values.auth.existingSecret) (not .Values.auth.workerToken) }}
{{- fail "workers need auth.workerToken, one of auth.tokens with the role worker" }}
{{- end }}
{{- end }}
{{- if eq $worker.mode "deployment" }}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}
{{- fail "worker.mode=deployment is for one server: a worker attaches to one, and a Service would choose it by chance; use worker.mode=sidecar" }}
{{- end }}
{{- end }}
{{- end }}

{{/* A worker: its container, without a name. */}}
{{- define "trunkline.workerContainer" -}}
image: {{ .Values.worker.image }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: {{ toJson .Values.worker.command }}
args:
  {{- with .Values.worker.args }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  - --connect={{ .connect }}
  {{- if include "trunkline.secret" . }}
  - --token-file=/etc/trunkline/tokens/worker-token
  {{- end }}
env:
  - {name: HOME, value: /tmp}
  {{- with .Values.worker.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  {{- include "trunkline.containerSecurity" . | nindent 2 }}
resources:
  {{- toYaml .Values.worker.resources | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: shared-memory, mountPath: /dev/shm}
  {{- if .Values.model.volume }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
  {{- if include "trunkline.secret" . }}
  - {name: worker-token, mountPath: /etc/trunkline/tokens, readOnly: true}
  {{- end }}
  {{- if .Values.tls.secretName }}
  - {name: tls, mountPath: /etc/trunkline/tls, readOnly: true}
  {{- end }}
{{- end }}

{{- define "trunkline.workerVolumes" -}}
- name: tmp
  emptyDir: {}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.worker.sharedMemory }}}
{{- with include "trunkline.secret" . }}
- name: worker-token
  secret: {secretName: {{ . }}, defaultMode: 288, items: [{key: worker-token, path: worker-token}]}
{{- end }}
{{- end }}

{{/* Volumes of servers and workers alike. */}}
{{- define "trunkline.sharedVolumes" -}}
{{- with .Values.model.volume }}
- name: models
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 288}
{{- end }}
{{- end }}
