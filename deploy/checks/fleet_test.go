package checks

import (
	"fmt"
	"path"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// fleetValues make a fleet of the replicas.
const fleetValues = "replicas: 5\nfleet: {tlsSecret: peers-tls}"

// fleetConfig is what these tests read of the relay's configuration.
type fleetConfig struct {
	Name    string `json:"name"`
	Members struct {
		DNS  string `json:"dns"`
		Etcd struct {
			Endpoints []string `json:"endpoints"`
		} `json:"etcd"`
	} `json:"members"`
	Listen string            `json:"listen"`
	TLS    map[string]string `json:"tls"`
}

// workload is what the chart gives for a fleet.
type workload struct {
	fleet      *fleetConfig
	deployment appsv1.Deployment
	services   []corev1.Service
	network    networkingv1.NetworkPolicy
	disruption policyv1.PodDisruptionBudget
}

func renderWorkload(t *testing.T, values string) workload {
	t.Helper()
	manifests, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	var w workload
	var m corev1.ConfigMap
	decodeInto(t, manifests["configmap.yaml"], &m)
	var config struct {
		Fleet *fleetConfig `json:"fleet"`
	}
	if err := yaml.Unmarshal([]byte(m.Data["relay.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	w.fleet = config.Fleet
	decodeInto(t, manifests["workload.yaml"], &w.deployment)
	decodeInto(t, manifests["networkpolicy.yaml"], &w.network)
	decodeInto(t, manifests["poddisruptionbudget.yaml"], &w.disruption)
	for _, document := range documents(t, manifests["service.yaml"]) {
		var s corev1.Service
		decodeInto(t, string(document), &s)
		w.services = append(w.services, s)
	}
	return w
}

// TestOneValueMakesAFleetOfTheReplicas: each relay finds the others by the headless Service, may connect to them, and
// shows them the certificate of the Secret.
func TestOneValueMakesAFleetOfTheReplicas(t *testing.T) {
	w := renderWorkload(t, fleetValues)
	f := w.fleet
	if f == nil {
		t.Fatal("the relay's configuration has no fleet")
	}
	if got := *w.deployment.Spec.Replicas; got != 5 {
		t.Errorf("%d replicas, want 5", got)
	}
	pod := w.deployment.Spec.Template
	c := pod.Spec.Containers[0]
	port := int32(0)
	for _, p := range c.Ports {
		if p.Name == "fleet" {
			port = p.ContainerPort
		}
	}
	if want := fmt.Sprintf("0.0.0.0:%d", port); f.Listen != want {
		t.Errorf("the relay listens at %s, the pod's port is %s", f.Listen, want)
	}

	// The name has the addresses of ready relays only: nobody publishes the others.
	found := false
	for _, s := range w.services {
		if f.Members.DNS != fmt.Sprintf("%s.%s.svc:%d", s.Name, s.Namespace, port) {
			continue
		}
		found = true
		if s.Spec.ClusterIP != corev1.ClusterIPNone || s.Spec.PublishNotReadyAddresses {
			t.Errorf("the Service %s is not headless, or has relays that are not ready", s.Name)
		}
		mustSelect(t, "the headless Service", s.Spec.Selector, pod.Labels)
	}
	if !found {
		t.Errorf("no Service has the name of the members, %s", f.Members.DNS)
	}

	secrets := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil {
			secrets[v.Name] = v.Secret.SecretName
		}
	}
	folder := ""
	for _, m := range c.VolumeMounts {
		if secrets[m.Name] == "peers-tls" {
			folder = m.MountPath
		}
	}
	for key, file := range map[string]string{"cert_file": "tls.crt", "key_file": "tls.key", "ca_file": "ca.crt"} {
		if want := path.Join(folder, file); folder == "" || f.TLS[key] != want {
			t.Errorf("fleet.tls.%s is %s, the Secret's is %s", key, f.TLS[key], want)
		}
	}
	if f.TLS["server_id"] == "" {
		t.Error("any certificate of the CA makes a member")
	}

	mayConnect := false
	for _, rule := range w.network.Spec.Ingress {
		if !slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port.String() == "fleet" }) {
			continue
		}
		if len(rule.From) != 1 || rule.From[0].PodSelector == nil || rule.From[0].NamespaceSelector != nil {
			t.Errorf("others than the relays may connect to the fleet's port: %+v", rule.From)
			continue
		}
		mayConnect = true
		mustSelect(t, "the NetworkPolicy", rule.From[0].PodSelector.MatchLabels, pod.Labels)
	}
	if !mayConnect {
		t.Error("the relays may not connect to each other")
	}

	if d := w.disruption.Spec; d.MaxUnavailable == nil || d.MaxUnavailable.IntValue() != 1 {
		t.Errorf("more than one relay may be evicted at a time: %v", d.MaxUnavailable)
	} else {
		mustSelect(t, "the PodDisruptionBudget", d.Selector.MatchLabels, pod.Labels)
	}
	spread := map[string]bool{}
	for _, s := range pod.Spec.TopologySpreadConstraints {
		spread[s.TopologyKey] = true
		mustSelect(t, "the spread over "+s.TopologyKey, s.LabelSelector.MatchLabels, pod.Labels)
	}
	if !spread[corev1.LabelHostname] || !spread[corev1.LabelTopologyZone] {
		t.Errorf("the relays are spread over %v, want hosts and zones", spread)
	}
}

// TestAFleetMayHaveOtherMembers: those in etcd, in place of the Service's.
func TestAFleetMayHaveOtherMembers(t *testing.T) {
	w := renderWorkload(t, fleetValues+"\nconfig: {fleet: {name: edge, members: {etcd: {endpoints: [\"http://etcd:2379\"]}}}}")
	if f := w.fleet; f == nil || f.Name != "edge" || f.Members.DNS != "" || len(f.Members.Etcd.Endpoints) != 1 || f.TLS["server_id"] == "" {
		t.Errorf("the fleet is %+v", f)
	}
}

func mustSelect(t *testing.T, what string, selector, of map[string]string) {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchLabels: selector})
	if err != nil || s.Empty() || !s.Matches(labels.Set(of)) {
		t.Errorf("%s does not select the relays: %v, %v", what, selector, err)
	}
}

// TestRelaysAreNoFleetByDefault: members need certificates.
func TestRelaysAreNoFleetByDefault(t *testing.T) {
	w := renderWorkload(t, "")
	if w.fleet != nil {
		t.Errorf("the relay's configuration has a fleet: %+v", w.fleet)
	}
	for _, p := range w.deployment.Spec.Template.Spec.Containers[0].Ports {
		if p.Name == "fleet" {
			t.Errorf("the pod has a port of a fleet: %d", p.ContainerPort)
		}
	}
	if n := len(w.network.Spec.Ingress); n != 1 {
		t.Errorf("%d kinds of others may connect, want the clients", n)
	}
}
