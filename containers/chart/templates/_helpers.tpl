{{- define "numl.name" -}}
{{- $name := ternary .Release.Name (printf "%s-numl" .Release.Name) (contains "numl" .Release.Name) -}}
{{- trunc 50 $name | trimSuffix "-" -}}
{{- end }}

{{/* Called with (list . "server"). */}}
{{- define "numl.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: numl
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "numl.labels" -}}
{{- $root := index . 0 -}}
{{ include "numl.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{- define "numl.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Not by .Capabilities.APIVersions: rendered without a cluster, Helm has all of its own there. */}}
{{- define "numl.disruption" -}}
policy/{{ ternary "v1" "v1beta1" (semverCompare ">=1.21-0" .Capabilities.KubeVersion.Version) }}
{{- end }}

{{/* Processes that share /dev/shm. */}}
{{- define "numl.shmMi" -}}
{{- mul (len .Values.models) .Values.instances .Values.shmMiPerInstance -}}
{{- end }}

{{/* As Pod Security's level "restricted" asks, and with no fixed user: OpenShift chooses one. */}}
{{- define "numl.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "numl.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "numl.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "numl.selector" . | nindent 8 }}
{{- end }}

{{/* The volume with the public key that releases must be signed with; empty: none. */}}
{{- define "numl.verifyKey" -}}
{{- with .Values.verify.key }}
{{- if and .configMap .secret }}
{{- fail "verify.key: name a ConfigMap or a Secret, not both" }}
{{- else if .configMap -}}
configMap: {name: {{ .configMap }}}
{{- else if .secret -}}
secret: {secretName: {{ .secret }}}
{{- end }}
{{- end }}
{{- end }}
