// Package previous checks the manifests of deploy/ by the types of the version of Kubernetes before the
// newest.
package previous

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

func TestManifestsAreOfThePreviousVersionsTypes(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			var head struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal(document, &head); err != nil {
				t.Fatal(err)
			}
			object, ok := map[string]any{
				"v1 ConfigMap": new(corev1.ConfigMap), "v1 Pod": new(corev1.Pod), "v1 Service": new(corev1.Service), "v1 ServiceAccount": new(corev1.ServiceAccount),
				"apps/v1 Deployment": new(appsv1.Deployment), "apps/v1 StatefulSet": new(appsv1.StatefulSet),
				"policy/v1 PodDisruptionBudget":          new(policyv1.PodDisruptionBudget),
				"autoscaling/v2 HorizontalPodAutoscaler": new(autoscalingv2.HorizontalPodAutoscaler),
				"networking.k8s.io/v1 NetworkPolicy":     new(networkingv1.NetworkPolicy),
			}[head.APIVersion+" "+head.Kind]
			if !ok {
				if head.Kind != "ServiceMonitor" && head.Kind != "PrometheusRule" { // of Prometheus' operator, and of no version of Kubernetes
					t.Errorf("%s: the test knows no %s of %s", file, head.Kind, head.APIVersion)
				}
				continue
			}
			if err := yaml.UnmarshalStrict(document, object); err != nil {
				t.Errorf("%s: %v\n%s", file, err, document)
			}
			checked++
		}
	}
	const least = 12
	if checked < least {
		t.Errorf("%d manifests, want at least %d", checked, least)
	}
}
