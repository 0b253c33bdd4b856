{{- define "numl.name" -}}
{{- $name := ternary .Release.Name (printf "%s-numl" .Release.Name) (contains "numl" .Release.Name) -}}
{{- trunc 50 $name | trimSuffix "-" -}}
{{- end }}

{{/* Called with (list . "server"). */}}
{{- define "numl.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: numl
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
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

{{/* For the server, and for the agent that writes its settings. */}}
{{- define "numl.limits" -}}
{{- $limits := .Values.limits -}}
{{- $names := dict "waiting" "NUML_WAITING" "waitSeconds" "NUML_WAIT_S" "hits" "NUML_HITS" -}}
{{- $set := list -}}
{{- range $key, $name := $names }}{{ $value := index $limits $key }}
{{- if not (kindIs "invalid" $value) }}{{ $shown := eq $key "waitSeconds" | ternary (toString $value) (int64 $value | toString) }}
{{- $set = append $set (printf "- {name: %s, value: %q}" $name $shown) }}{{ end }}{{ end -}}
{{- join "\n" $set -}}
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
    whenUnsatisfiable: {{ (index . 0).Values.spread }}
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
configMap: {name: {{ .configMap | quote }}}
{{- else if .secret -}}
secret: {secretName: {{ .secret | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* What Envoy's heap may have of its container's memory, in bytes; the rest is its code, threads and kernel. */}}
{{- define "numl.heapBytes" -}}
{{- $limit := .Values.frontDoor.resources.limits.memory -}}
{{- $mebi := int (regexFind "^[0-9]+" $limit) -}}
{{- if hasSuffix "Gi" $limit }}{{ $mebi = mul $mebi 1024 }}{{ end -}}
{{- div (mul $mebi 1048576 3) 4 -}}
{{- end }}

{{/* Who has a quota of its own, as a YAML list; without names: anyone, by address. */}}
{{- define "numl.tenants" -}}
{{- $door := .Values.frontDoor -}}
{{- if eq $door.tenants.by "address" -}}
{{- list (merge (dict "name" "anyone" "subject" "") $door.quota) | toYaml -}}
{{- else -}}
{{- $all := list -}}
{{- $names := list -}}
{{- $subjects := list -}}
{{- range $door.tenants.clients -}}
{{- if has .name $names }}{{ fail (printf "frontDoor.tenants.clients: two have the name %s" .name) }}{{ end -}}
{{- if has .subject $subjects }}{{ fail (printf "frontDoor.tenants.clients: two have the subject %s" .subject) }}{{ end -}}
{{- $names = append $names .name -}}
{{- $subjects = append $subjects .subject -}}
{{- $all = append $all (mergeOverwrite (deepCopy $door.quota) .) -}}
{{- end -}}
{{- $all | toYaml -}}
{{- end -}}
{{- end }}

{{/* The port of the bucket's address. */}}
{{- define "numl.bucketPort" -}}
{{- $host := regexReplaceAll "^s3://(https?://)?([^/]*).*$" .Values.bucket.url "${2}" -}}
{{- if regexMatch ":[0-9]+$" $host -}}
{{- regexFind "[0-9]+$" $host -}}
{{- else -}}
{{- ternary 80 443 (hasPrefix "s3://http://" .Values.bucket.url) -}}
{{- end -}}
{{- end }}

{{/* Who may read metrics: this namespace, unless clients need names. */}}
{{- define "numl.monitoring" -}}
{{- $named := and .Values.frontDoor.enabled (ne .Values.frontDoor.tenants.by "address") -}}
{{- $none := list -}}
{{- default (ternary $none (list (dict "podSelector" dict)) $named) .Values.networkPolicy.monitoring | toYaml -}}
{{- end }}

{{- define "numl.dns" -}}
- to:
    {{- toYaml .Values.networkPolicy.dns | nindent 4 }}
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
    # OpenShift's DNS listens there.
    - {port: 5353, protocol: UDP}
    - {port: 5353, protocol: TCP}
{{- end }}

{{/* Whether the pods open HTTP: to the front door, which filters it, or because it was asked for. */}}
{{- define "numl.openHttp" -}}
{{- if or .Values.frontDoor.enabled .Values.openHttp -}}yes{{- end -}}
{{- end -}}
