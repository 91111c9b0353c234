{{/* Names are fixed: there is one release a cluster, and the programs know them. */}}
{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Call with (list . "operator"): what Deployments, DaemonSets and policies select by. */}}
{{- define "millrace.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Call with (list . "operator"). */}}
{{- define "millrace.image" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.image -}}
{{ with .registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .prefix }}{{ index $ 1 }}:{{ .tag | default $root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "millrace.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "millrace.logEnvironment" -}}
- {name: MILLRACE_LOG, value: {{ .Values.logLevel | quote }}}
- {name: MILLRACE_LOG_FORMAT, value: {{ .Values.logFormat | quote }}}
{{- end }}

{{/* The container of programs that need nothing from the node: what Pod Security calls restricted. */}}
{{- define "millrace.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
