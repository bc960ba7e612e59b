{{- define "xds-relay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "xds-relay.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "xds-relay.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "xds-relay.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "xds-relay.selector" -}}
app.kubernetes.io/name: {{ include "xds-relay.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "xds-relay.labels" -}}
{{ include "xds-relay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "xds-relay.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "xds-relay.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "xds-relay.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{- define "xds-relay.kind" -}}
{{ if and .Values.store.enabled .Values.store.persistence.enabled }}StatefulSet{{ else }}Deployment{{ end }}
{{- end }}

{{/* The port of the first listener, on which clients connect. */}}
{{- define "xds-relay.clientPort" -}}
{{- if .Values.existingConfigMap -}}
{{ .Values.service.port }}
{{- else -}}
{{ (index .Values.config.listeners 0).address | splitList ":" | last }}
{{- end -}}
{{- end }}

{{/* The configuration: that of the values, the listener for probes, the store, the admin listener with
TLS, and the fleet. A relay finds itself among the addresses of the headless Service. */}}
{{- define "xds-relay.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $probes := dict "address" (printf "0.0.0.0:%d" (int .Values.health.port)) "admit" "false" }}
{{- $_ := set $config "listeners" (append $config.listeners $probes) }}
{{- if .Values.store.enabled }}
{{- $store := dict "path" "/var/lib/xds-relay/accepted.db" }}
{{- if .Values.store.keySecret }}
{{- $_ := set $store "key_file" "/etc/xds-relay-store/store.key" }}
{{- end }}
{{- $_ := set $config "store" (mergeOverwrite $store (get $config "store" | default dict)) }}
{{- end }}
{{- if .Values.admin.tlsSecret }}
{{- $at := "/etc/xds-relay-admin" }}
{{- $_ := set $config "admin" (dict "address" (printf "0.0.0.0:%d" (int .Values.admin.port)) "tls" (dict
      "cert_file" (printf "%s/tls.crt" $at) "key_file" (printf "%s/tls.key" $at) "client_ca_file" (printf "%s/ca.crt" $at))) }}
{{- end }}
{{- if .Values.fleet.tlsSecret }}
{{- $at := "/etc/xds-relay-fleet" }}
{{- $fleet := dict
      "name" (include "xds-relay.fullname" .)
      "members" (dict "dns" (printf "%s-pods.%s.svc:%d" (include "xds-relay.fullname" .) .Release.Namespace (int .Values.fleet.port)))
      "listen" (printf "0.0.0.0:%d" (int .Values.fleet.port))
      "tls" (dict "cert_file" (printf "%s/tls.crt" $at) "key_file" (printf "%s/tls.key" $at)
        "ca_file" (printf "%s/ca.crt" $at) "server_id" .Values.fleet.serverId) }}
{{- $given := get $config "fleet" | default dict }}
{{- if hasKey $given "members" }}
{{- $_ := unset $fleet "members" }}
{{- end }}
{{- $_ := set $config "fleet" (mergeOverwrite $fleet $given) }}
{{- end }}
{{- toYaml $config }}
{{- end }}
