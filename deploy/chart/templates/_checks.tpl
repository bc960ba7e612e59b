{{/* What cannot work is refused, with the value that is wrong and one that is right. */}}

{{/* A duration of Go, in whole seconds. */}}
{{- define "xds-relay.seconds" -}}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(ns|us|µs|μs|ms|s|m|h)" . -1 }}
{{- $number := regexFind "^[0-9.]+" . | float64 }}
{{- $unit := regexFind "[a-zµμ]+$" . }}
{{- $sum = addf $sum (mulf $number (get (dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001) $unit | default 0.0)) }}
{{- end }}
{{- ceil $sum | int }}
{{- end }}

{{- define "xds-relay.checks" -}}
{{- if not .Values.existingConfigMap }}
{{- $address := (index .Values.config.listeners 0).address }}
{{- if hasPrefix "unix:" $address }}
{{- fail (printf "config.listeners[0].address: %s is a unix socket, and the Service leads to a port: put the listener for clients of other pods first, such as 0.0.0.0:18000" $address) }}
{{- end }}
{{- $host := $address | trimSuffix (printf ":%s" (splitList ":" $address | last)) }}
{{- if or (eq $host "localhost") (eq $host "[::1]") (hasPrefix "127." $host) }}
{{- fail (printf "config.listeners[0].address: %s is loopback, where no client outside of the pod connects: use 0.0.0.0:%s" $address (splitList ":" $address | last)) }}
{{- end }}
{{- if eq (splitList ":" $address | last) (toString .Values.health.port) }}
{{- fail (printf "config.listeners[0].address: %s has the port of health.port: use another one" $address) }}
{{- end }}
{{- $drain := .Values.config.drain | default dict }}
{{- $delay := include "xds-relay.seconds" ($drain.delay | default "0s") | int }}
{{- $time := include "xds-relay.seconds" ($drain.time | default "30s") | int }}
{{- $needed := add $delay $time 15 | int }}
{{- if lt (int .Values.terminationGracePeriodSeconds) $needed }}
{{- fail (printf "terminationGracePeriodSeconds: %d is too short for config.drain: a relay needs %d seconds to end (delay, time, and 15 seconds more), and Kubernetes kills it before" (int .Values.terminationGracePeriodSeconds) $needed) }}
{{- end }}
{{- end }}
{{- end }}
