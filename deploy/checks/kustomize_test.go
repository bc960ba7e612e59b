package checks

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

var update = flag.Bool("update", false, "write the files that are made of the chart")

// helmLabels are labels that are Helm's.
var helmLabels = regexp.MustCompile(`(?m)^ +(helm\.sh/chart|app\.kubernetes\.io/managed-by|app\.kubernetes\.io/version): .*\n| +namespace: xds\n|^---\n# Source: .*\n`)

// expected compares a file with what it should be, or writes it.
func expected(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is not what the chart gives (make deploy-generate writes it): %v", path, err)
	}
}

func TestTheKustomizeBaseIsTheChart(t *testing.T) {
	manifests, err := render(t, "")
	if err != nil {
		t.Fatal(err)
	}
	delete(manifests, "test.yaml") // for helm test
	for name, text := range manifests {
		text = strings.TrimLeft(helmLabels.ReplaceAllString(text, ""), "\n")
		if name == "configmap.yaml" {
			var m corev1.ConfigMap
			decodeInto(t, text, &m)
			name, text = "relay.yaml", m.Data["relay.yaml"]
		}
		expected(t, filepath.Join("../kustomize/base", name), strings.TrimRight(text, "\n")+"\n")
	}
}

// The manifests with every value, as they are for the newest version of Kubernetes. previous/ reads
// them by the types of the version before.
func TestRenderedManifestsAreUpToDate(t *testing.T) {
	for _, name := range []string{"the defaults", "everything"} {
		manifests, err := render(t, variants[name])
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, file := range slices.Sorted(maps.Keys(manifests)) {
			all.WriteString("---\n" + strings.TrimSpace(manifests[file]) + "\n")
		}
		expected(t, filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".yaml"), all.String())
	}
}

func TestKustomizationsBuild(t *testing.T) {
	for _, folder := range []string{"base", "example"} {
		t.Run(folder, func(t *testing.T) {
			built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("../kustomize", folder))
			if err != nil {
				t.Fatal(err)
			}
			text, err := built.AsYaml()
			if err != nil {
				t.Fatal(err)
			}
			all := documents(t, string(text))
			for _, document := range all {
				decode(t, document)
			}
			if len(all) != 7 {
				t.Errorf("%d manifests, want 7", len(all))
			}
			if folder == "example" && !strings.Contains(string(text), "image: registry.example.com/xds-relay:0.1.0") {
				t.Error("the overlay has not set the image")
			}
		})
	}
}
