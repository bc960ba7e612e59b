package main

// `xds-relay diff --server A --server B` compares what two servers give a client.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/client/render"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/lint"
)

// serversFlags are the flags of `diff` for two servers.
type serversFlags struct {
	servers   []string
	listeners []string
	form      formFlags
	node      nodeFlags
	types     descriptorFlags
}

func (f *serversFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&f.servers, "server", "s", nil, "an xDS server, `HOST:PORT`: give two, to compare them")
	flags.StringSliceVar(&f.listeners, "listener", nil, "with --server: begin with the listener of this `NAME`, not with all listeners and clusters; can be repeated")
	f.form.register(flags)
	f.node.register(flags)
	f.types.register(flags)
}

func (f *serversFlags) given() bool { return len(f.servers) > 0 }

// serverDifference is a resource that two servers give differently.
type serverDifference struct {
	Type string `json:"type"`
	Name string `json:"name"`
	// What is only_a, only_b or content.
	What  string `json:"what"`
	Lines string `json:"lines,omitempty"`
}

// serversDifference is the output of `diff --server A --server B -o json`.
type serversDifference struct {
	A           string             `json:"a"`
	B           string             `json:"b"`
	Differences []serverDifference `json:"differences"`
	Same        int                `json:"same"`
}

// compare compares what the servers give.
func (f *serversFlags) compare(cmd *cobra.Command, q *adminQuery, args []string) error {
	switch {
	case len(f.servers) != 2:
		return usageError(fmt.Errorf("--server: want two servers to compare, and not %d", len(f.servers)))
	case len(args) > 0 || cmd.Flags().Changed("admin"):
		return usageError(errors.New("clients and --admin do not go with --server"))
	}
	if err := q.check(); err != nil {
		return err
	}
	if err := f.types.use(); err != nil {
		return err
	}
	var found [2][]lint.Resource
	for i, server := range f.servers {
		c := newCrawl(&lintFlags{listeners: f.listeners, form: f.form, node: f.node, tls: q.tls, timeout: q.timeout})
		if err := c.prepare(server); err != nil {
			return usageError(err)
		}
		if err := c.run(cmd.Context()); err != nil {
			return &exitError{status: statusFailed, err: err}
		}
		found[i] = c.found
	}
	d := differenceOf(found[0], found[1])
	d.A, d.B = f.servers[0], f.servers[1]
	if q.output == "json" {
		if err := printJSON(cmd.OutOrStdout(), d); err != nil {
			return err
		}
	} else {
		paint := coloursOf(cmd.OutOrStdout())
		text := map[string]string{"only_a": "only " + d.A + " has it", "only_b": "only " + d.B + " has it", "content": "the content differs"}
		for _, one := range d.Differences {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s: %s\n", one.Type, strconv.Quote(one.Name), text[one.What])
			for line := range strings.Lines(one.Lines) {
				fmt.Fprintf(cmd.OutOrStdout(), "    %s\n", paint.changed(oneLine(strings.TrimSuffix(line, "\n"))))
			}
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s, %s alike\n", count(len(d.Differences), "difference"), count(d.Same, "resource"))
	}
	if len(d.Differences) > 0 {
		return &exitError{status: statusNotAll}
	}
	return nil
}

// differenceOf compares two sets of resources.
func differenceOf(a, b []lint.Resource) *serversDifference {
	byID := func(resources []lint.Resource) map[graph.ID]*lint.Resource {
		m := make(map[graph.ID]*lint.Resource, len(resources))
		for i := range resources {
			m[graph.ID{TypeURL: resources[i].TypeURL, Name: resources[i].Name}] = &resources[i]
		}
		return m
	}
	ofA, ofB := byID(a), byID(b)
	d := &serversDifference{Differences: []serverDifference{}}
	for id, inA := range ofA {
		one := serverDifference{Type: xdstype.Word(id.TypeURL), Name: id.Name}
		switch inB := ofB[id]; {
		case inB == nil:
			one.What = "only_a"
		case textOf(inA, true) == textOf(inB, true):
			d.Same++
			continue
		default:
			one.What = "content"
			text := string(diff.Diff("a", []byte(textOf(inA, false)), "b", []byte(textOf(inB, false))))
			_, one.Lines, _ = strings.Cut(text, "\n") // without the line with the command
		}
		d.Differences = append(d.Differences, one)
	}
	for id := range ofB {
		if ofA[id] == nil {
			d.Differences = append(d.Differences, serverDifference{Type: xdstype.Word(id.TypeURL), Name: id.Name, What: "only_b"})
		}
	}
	slices.SortFunc(d.Differences, func(x, y serverDifference) int {
		return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Name, y.Name))
	})
	return d
}

// textOf returns a resource as text. Two encodings of one message have the same.
func textOf(r *lint.Resource, secrets bool) string {
	text, err := (render.Options{ShowSecrets: secrets}).YAML(&discoveryv3.Resource{Name: r.Name, Resource: &anypb.Any{TypeUrl: r.TypeURL, Value: r.Value}})
	if err != nil {
		return string(r.Value)
	}
	return string(text)
}
