package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/xds-relay/xds-relay/client/render" // all of Envoy's messages
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

const examples = "testdata/rules"

// read returns the resources of a file.
func read(t *testing.T, file string) []Resource {
	t.Helper()
	written, _, err := directory.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]Resource, len(written))
	for i, w := range written {
		all[i] = Resource{w.TypeURL, w.Name, w.Value}
	}
	return all
}

// example returns the file of an example of a rule.
func example(t *testing.T, rule, which string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(examples, rule, which+".*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s has examples %q", rule, files)
	}
	return files[0]
}

func TestEachRuleHasAnExampleThatBreaksItAndOneThatKeepsIt(t *testing.T) {
	for _, rule := range Rules() {
		t.Run(rule.ID, func(t *testing.T) {
			if rule == ReadableFile {
				if _, _, err := directory.Read(example(t, readable, "broken")); err == nil {
					t.Error("what breaks it can be read")
				}
				read(t, example(t, readable, "kept"))
				return
			}
			if rule == KnownFields {
				for which, want := range map[string]int{"broken": 2, "kept": 0} {
					if _, ignored, err := directory.Read(example(t, known, which)); len(ignored) != want || err != nil {
						t.Errorf("%s: %v are ignored, and the error is %v", which, ignored, err)
					}
				}
				return
			}
			of := func(found []Finding) []Finding {
				return slices.DeleteFunc(found, func(f Finding) bool { return f.ID != rule.ID })
			}
			broken := of(Check(read(t, example(t, rule.ID, "broken")), Options{}))
			if len(broken) == 0 {
				t.Error("nothing is found in what breaks it")
			}
			for _, f := range broken {
				if f.Text == "" || f.Source == "" || f.Severity < rule.Severity {
					t.Errorf("%+v", f)
				}
			}
			if kept := of(Check(read(t, example(t, rule.ID, "kept")), Options{})); len(kept) > 0 {
				t.Errorf("what keeps it breaks it: %s", kept[0].Text)
			}
		})
	}
	folders, err := os.ReadDir(examples)
	if err != nil {
		t.Fatal(err)
	}
	if len(folders) != len(Rules()) {
		t.Errorf("%d examples, %d rules", len(folders), len(Rules()))
	}
}

func TestSeverities(t *testing.T) {
	lbPolicy := read(t, example(t, "grpc-lb-policy", "broken"))
	timeout := read(t, example(t, "envoy-constraint", "broken"))
	anyDecodable := read(t, example(t, "any-decodable", "broken"))
	for _, tt := range []struct {
		name      string
		resources []Resource
		of        taster.Family
		want      string
	}{
		{"what one family rejects is a warning", lbPolicy, "", "warning grpc-lb-policy grpc"},
		{"what one family rejects is a warning, for both", lbPolicy, taster.All, "warning grpc-lb-policy grpc"},
		{"what all clients reject is an error", lbPolicy, taster.GRPC, "error grpc-lb-policy grpc"},
		{"what no client rejects is nothing", lbPolicy, taster.Envoy, ""},
		{"for Envoy", timeout, taster.Envoy, "error envoy-constraint envoy"},
		{"not for gRPC", timeout, taster.GRPC, ""},
		{"what both reject is an error", anyDecodable, "", "error any-decodable all"},
		{"what both reject is an error for each", anyDecodable, taster.GRPC, "error any-decodable all"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := lines(Check(tt.resources, Options{For: tt.of, Part: true, Elsewhere: func(graph.ID) bool { return true }})); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func lines(found []Finding) string {
	all := make([]string, len(found))
	for i, f := range found {
		all[i] = strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Severity, f.ID, f.RejectedBy))
	}
	return strings.Join(all, "; ")
}

func TestWhatIsNotInTheSet(t *testing.T) {
	resources := read(t, example(t, dangling, "broken"))
	ids := func(found []Finding) (all []string) {
		for _, f := range found {
			if f.ID == dangling || f.ID == unused {
				all = append(all, f.ID)
			}
		}
		return all
	}
	for _, tt := range []struct {
		name string
		o    Options
		want []string
	}{
		{"it is all there is", Options{}, []string{dangling, unused, unused}},
		{"it may be elsewhere", Options{Elsewhere: func(id graph.ID) bool { return id.TypeURL == xdstype.ClusterV3 && id.Name == "cart-v2" }}, []string{unused, unused}},
		{"there are more", Options{Part: true}, []string{dangling}},
	} {
		if got := ids(Check(resources, tt.o)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A set of many resources takes linear time, even if each names everything that another one names.
func TestManyResources(t *testing.T) {
	var resources []Resource
	for _, r := range read(t, example(t, unused, "kept")) {
		for i := range 2000 {
			resources = append(resources, Resource{r.TypeURL, fmt.Sprintf("%s-%d", r.Name, i), r.Value})
		}
	}
	if found := Check(resources, Options{}); len(found) < 2000 {
		t.Errorf("%d findings", len(found))
	}
}
