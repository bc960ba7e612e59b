// Package checks holds deploy/ to the libraries of those who read it.
package checks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const chartFolder = "../chart"

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// render returns the manifests of the chart with these values, by the names of their templates.
func render(t *testing.T, values string) (map[string]string, error) {
	t.Helper()
	c := loadChart(t)
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: "xds-relay", Namespace: "xds"}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(c, all)
	if err != nil {
		return nil, err
	}
	manifests := map[string]string{}
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(text) != "" {
			manifests[filepath.Base(name)] = text
		}
	}
	return manifests, nil
}

// typeOf returns an empty object of a kind.
func typeOf(t *testing.T, apiVersion, kind string) any {
	t.Helper()
	for _, known := range []struct {
		apiVersion, kind string
		object           any
	}{
		{"v1", "ConfigMap", new(corev1.ConfigMap)},
		{"v1", "Service", new(corev1.Service)},
		{"v1", "Pod", new(corev1.Pod)},
		{"v1", "ServiceAccount", new(corev1.ServiceAccount)},
		{"apps/v1", "Deployment", new(appsv1.Deployment)},
		{"apps/v1", "StatefulSet", new(appsv1.StatefulSet)},
		{"policy/v1", "PodDisruptionBudget", new(policyv1.PodDisruptionBudget)},
		{"autoscaling/v2", "HorizontalPodAutoscaler", new(autoscalingv2.HorizontalPodAutoscaler)},
		{"networking.k8s.io/v1", "NetworkPolicy", new(networkingv1.NetworkPolicy)},
		{"monitoring.coreos.com/v1", "ServiceMonitor", new(monitoringv1.ServiceMonitor)},
		{"monitoring.coreos.com/v1", "PrometheusRule", new(monitoringv1.PrometheusRule)},
	} {
		if known.apiVersion == apiVersion && known.kind == kind {
			return known.object
		}
	}
	t.Fatalf("%s %s: the test knows no such kind", apiVersion, kind)
	return nil
}

// documents splits YAML into its documents.
func documents(t *testing.T, text string) [][]byte {
	t.Helper()
	var all [][]byte
	for r := utilyaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text))); ; {
		buffer := make([]byte, len(text)+1)
		n, err := r.Read(buffer)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if document := bytes.TrimSpace(buffer[:n]); len(document) > 0 {
			all = append(all, document)
		}
	}
}

// decode decodes a document strictly: an unknown field, or one given twice, is an error.
func decode(t *testing.T, document []byte) any {
	t.Helper()
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(document, &head); err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
	object := typeOf(t, head.APIVersion, head.Kind)
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		t.Errorf("%s: %v\n%s", head.Kind, err, document)
	}
	checkSchema(t, head.APIVersion, head.Kind, document)
	return object
}

// variants are values that reach every branch of the templates.
var variants = map[string]string{
	"the defaults": "",
	"everything": `
image: {digest: "sha256:` + strings.Repeat("0", 64) + `"}
imagePullSecrets: [{name: pull}]
config:
  listeners: [{address: "0.0.0.0:15012", tls: {cert_file: /etc/tls/tls.crt, key_file: /etc/tls/tls.key, client_ca_file: /etc/tls/ca.crt}}]
  admin: {address: "127.0.0.1:19000"}
  store: {wait: 2s}
  authorities: [{name: istiod, servers: [{address: "istiod.istio-system.svc:15010"}]}]
  old_style_names: [{authority: istiod, partition: node.id}]
service: {type: LoadBalancer, port: 15012, annotations: {a: b}, loadBalancerSourceRanges: [10.0.0.0/8]}
secretMounts: [{name: relay-tls, mountPath: /etc/tls}]
admin: {tlsSecret: admin-tls}
fleet: {tlsSecret: peers-tls, serverId: "spiffe://example.org/xds-relay", port: 18200}
store: {enabled: true, keySecret: store-key, persistence: {enabled: true, storageClass: fast}}
autoscaling: {enabled: true}
networkPolicy:
  clients: [{namespaceSelector: {}}]
  operators: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]
serviceMonitor: {enabled: true, tlsSecret: prometheus-tls, labels: {release: prometheus}}
serviceAccount: {annotations: {a: b}, automountToken: true}
podAnnotations: {a: b}
podLabels: {a: b}
nodeSelector: {a: b}
tolerations: [{key: a, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
priorityClassName: high
topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}]
extraEnv: [{name: A, value: b}]
extraVolumes: [{name: a, emptyDir: {}}]
extraVolumeMounts: [{name: a, mountPath: /a}]
`,
	"a fleet":                  fleetValues,
	"a store without a volume": "store: {enabled: true}",
	"a ConfigMap of one's own": "existingConfigMap: relay\nserviceAccount: {create: false}\npodDisruptionBudget: {enabled: false}\nnetworkPolicy: {enabled: false}",
	"alerts and a dashboard":   "prometheusRule: {enabled: true, labels: {release: prometheus}}\ndashboard: {enabled: true, annotations: {grafana_folder: xDS}}",
	"a slow drain":             "config: {drain: {delay: 10s, time: 5m}}\nterminationGracePeriodSeconds: 325",
	"another name":             "fullnameOverride: edge\nnameOverride: edge-relay",
}

func TestManifestsAreOfKubernetesTypes(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			manifests, err := render(t, values)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, text := range manifests {
				for _, document := range documents(t, text) {
					object := decode(t, document)
					seen[fmt.Sprintf("%T", object)] = true
					switch o := object.(type) {
					case *appsv1.Deployment:
						checkPod(t, &o.Spec.Template, o.Spec.Selector.MatchLabels)
					case *appsv1.StatefulSet:
						checkPod(t, &o.Spec.Template, o.Spec.Selector.MatchLabels)
					case *corev1.Pod:
						checkTest(t, o)
					}
				}
			}
			if kinds := len(seen); name == "everything" && kinds != 9 || name == "the defaults" && kinds != 7 {
				t.Errorf("%d kinds: %v", kinds, seen)
			}
		})
	}
}

// checkPod checks what the API server checks of references inside a pod, and what Kubernetes' Pod
// Security Standard "restricted" asks for.
func checkPod(t *testing.T, pod *corev1.PodTemplateSpec, selector map[string]string) {
	t.Helper()
	for key, value := range selector {
		if pod.Labels[key] != value {
			t.Errorf("the selector's %s=%s is no label of the pod", key, value)
		}
	}
	volumes := map[string]bool{"store": len(pod.Spec.Volumes) > 0}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	c := pod.Spec.Containers[0]
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("the volume %s is mounted and not there", m.Name)
		}
		if m.SubPath != "" {
			t.Errorf("%s is mounted by subPath, where no change arrives", m.Name)
		}
	}
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if c.ReadinessProbe.GRPC.Port != ports["health"] || c.LivenessProbe.TCPSocket.Port.String() != "health" {
		t.Errorf("probes ask %v and %v, health is at %d", c.ReadinessProbe.GRPC, c.LivenessProbe.TCPSocket, ports["health"])
	}
	s, p := c.SecurityContext, pod.Spec.SecurityContext
	if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!*p.RunAsNonRoot || *p.RunAsUser == 0 || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod has rights that it does not need: %v, %v", s, p)
	}
}

// checkTest checks the pod of helm test: it may not become a relay of the Service, and has what it mounts.
func checkTest(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if pod.Annotations["helm.sh/hook"] != "test" || len(pod.Labels) > 0 || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("the pod of helm test is one of the others: %v, %v, %s", pod.Annotations, pod.Labels, pod.Spec.RestartPolicy)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("the volume %s is mounted and not there", m.Name)
		}
	}
}

// The schema of values refuses what the templates would make nonsense of.
func TestValuesAreHeldToTheirSchema(t *testing.T) {
	for values, want := range map[string]string{
		"replica: 3":                "replica",
		"replicas: two":             "replicas",
		"config: {authorities: []}": "authorities",
		"config: {listeners: [{address: \"0.0.0.0:0\"}]}":          "address",
		"image: {digest: latest}":                                  "digest",
		"log: {level: trace}":                                      "level",
		"store: {persistence: {accessModes: [ReadWriteMany]}}":     "accessModes",
		"fleet: {enabled: true}":                                   "enabled",
		"fleet: {serverId: \"\"}":                                  "serverId",
		"service: {port: 70000}":                                   "port",
		"podDisruptionBudget: {maxUnavailable: 0}":                 "maxUnavailable",
		"serviceMonitor: {enabled: true}":                          "admin.tlsSecret",
		"config: {listeners: [{address: \"127.0.0.1:18000\"}]}":    "is loopback, where no client outside of the pod connects: use 0.0.0.0:18000",
		"config: {listeners: [{address: \"[::1]:18000\"}]}":        "is loopback",
		"config: {listeners: [{address: \"unix:/tmp/xds.sock\"}]}": "is a unix socket",
		"config: {listeners: [{address: \"0.0.0.0:18009\"}]}":      "has the port of health.port",
		"config: {drain: {time: 1m}}":                              "terminationGracePeriodSeconds: 60 is too short for config.drain: a relay needs 80 seconds",
		"config: {drain: {time: 1m30s500ms}}":                      "needs 111 seconds",
		"config: {cach: {linger: 1m}}":                             "cach",
		"config: {cache: {lingers: 1m}}":                           "lingers",
		"config: {authorities: [{name: a, server: []}]}":           "server",
		"dashboard: {label: {}}":                                   "label",
		"{serviceMonitor: {enabled: true}, admin: {tlsSecret: a}}": "serviceMonitor.tlsSecret is missing",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error about %s", values, err, want)
		}
	}
}

// TestEveryValueHasASchemaAndADefault compares the keys of values.yaml with those of the schema.
func TestEveryValueHasASchemaAndADefault(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartFolder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	compareKeys(t, "", loadChart(t).Values, schema)
}

func compareKeys(t *testing.T, path string, values, schema map[string]any) {
	t.Helper()
	if schema["additionalProperties"] != false {
		return // a map with any keys
	}
	properties, _ := schema["properties"].(map[string]any)
	for key, value := range values {
		of, ok := properties[key].(map[string]any)
		if !ok {
			t.Errorf("%s%s is not in the schema", path, key)
			continue
		}
		if inner, ok := value.(map[string]any); ok && path+key != "config" { // whose schema is the relay's
			compareKeys(t, path+key+".", inner, of)
		}
	}
	for key := range properties {
		if _, ok := values[key]; !ok && key != "global" {
			t.Errorf("%s%s is in the schema and not in values.yaml", path, key)
		}
	}
}

func decodeInto(t *testing.T, text string, object any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatal(err)
	}
}

// The values that docs/deploy.md shows are valid ones.
func TestValuesOfThePageAreValid(t *testing.T) {
	found := 0
	for _, block := range strings.Split(page(t, "deploy"), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		manifests, err := render(t, block)
		if err != nil {
			t.Errorf("%v\n%s", err, block)
			continue
		}
		found++
		for _, text := range manifests {
			for _, document := range documents(t, text) {
				decode(t, document)
			}
		}
	}
	if found == 0 {
		t.Error("docs/deploy.md shows no values")
	}
}
