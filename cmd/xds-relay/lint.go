package main

// `xds-relay lint` reports what is wrong with resources.

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/internal/fileerrors"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/lint"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

type lintFlags struct {
	servers   []string
	listeners []string
	form      formFlags
	timeout   time.Duration
	node      nodeFlags
	tls       tlsFlags
	types     descriptorFlags

	family    string
	elsewhere []string
	skip      []string
	strict    bool
	output    string
}

func newLintCommand() *cobra.Command {
	var f lintFlags
	cmd := &cobra.Command{
		Use:   "lint {FILE|DIRECTORY... | --server HOST:PORT}",
		Short: "Report what is wrong with resources, before a client does",
		Long: `Report what is wrong with resources: those that Envoy or gRPC would reject, references to
resources that do not exist, and resources that no client uses. docs/lint.md has the rules.

The resources are those of files and directories, in the formats that the relay reads, or those
of an xDS server: its listeners and clusters, and all that they name, directly or not.

Each finding is a line on standard output:
  FILE:LINE: SEVERITY: RULE: RESOURCE: what is wrong, at FIELD (SOURCE OF THE RULE)
An error is a resource that no client accepts, or one with which requests fail. A warning is a
resource that clients of one family reject; with --for of that family, it is an error. A hint is a
resource that no client uses.

Exit status:
  0  there is no error, and with --strict no warning either
  1  there is one
  2  the command line is wrong
  3  there was no connection or no stream to a server`,
		Example: `  xds-relay lint resources/
  xds-relay lint --for grpc --strict clusters.yaml routes.yaml
  xds-relay lint --server cp.example.com:443 --tls --node-id edge-1
  xds-relay lint --server 127.0.0.1:18000 --listener shop.example.com -o json`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			if err := f.check(paths); err != nil {
				return usageError(err)
			}
			if err := f.types.use(); err != nil {
				return err
			}
			var report lintReport
			if len(f.servers) == 0 {
				if err := f.files(paths, &report); err != nil {
					return usageError(err)
				}
			}
			for _, address := range f.servers {
				if err := f.server(cmd.Context(), address, &report); err != nil {
					return err
				}
			}
			if err := report.print(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.output); err != nil {
				return &exitError{status: statusFailed, err: err}
			}
			if report.Errors > 0 || f.strict && report.Warnings > 0 {
				return &exitError{status: statusNotAll}
			}
			return nil
		},
	}
	f.register(cmd.Flags())
	return cmd
}

func (f *lintFlags) register(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringSliceVarP(&f.servers, "server", "s", nil, "check the resources of this xDS server, `HOST:PORT`; can be repeated")
	flags.StringSliceVar(&f.listeners, "listener", nil, "begin with the listener of this `NAME`, not with all listeners and clusters; can be repeated")
	flags.StringVar(&f.family, "for", string(taster.All), "the `FAMILY` of all clients: envoy, grpc or all")
	flags.StringSliceVar(&f.elsewhere, "elsewhere", nil, "a resource that clients have from elsewhere, `TYPE=NAME`, such as cluster=xds of their bootstrap; can be repeated")
	flags.StringSliceVar(&f.skip, "skip", nil, "leave out the findings of this `RULE`; can be repeated")
	flags.BoolVar(&f.strict, "strict", false, "also fail for warnings")
	flags.StringVarP(&f.output, "output", "o", "text", "print as `FORM`: text or json")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Second, "how long to wait for each answer of a server")
	f.form.register(flags)
	f.node.register(flags)
	f.tls.register(flags)
	f.types.register(flags)
}

func (f *lintFlags) check(paths []string) error {
	switch {
	case len(f.servers) == 0 && len(paths) == 0:
		return errors.New("nothing to check: want files, directories, or --server HOST:PORT")
	case len(f.servers) > 0 && len(paths) > 0:
		return errors.New("files and --server do not go together")
	case len(f.listeners) > 0 && len(f.servers) == 0:
		return errors.New("--listener goes with --server")
	case f.timeout <= 0:
		return fmt.Errorf("--timeout %v: want more than 0", f.timeout)
	case f.output != "text" && f.output != "json":
		return fmt.Errorf("--output: unknown form %q (want text or json)", f.output)
	}
	if !slices.Contains([]taster.Family{taster.All, taster.Envoy, taster.GRPC}, taster.Family(f.family)) {
		return fmt.Errorf("--for: unknown family %q (want envoy, grpc or all)", f.family)
	}
	for _, rule := range f.skip {
		if !slices.ContainsFunc(lint.Rules(), func(r *lint.Rule) bool { return r.ID == rule }) {
			return fmt.Errorf("--skip: no rule %q (docs/lint.md has them)", rule)
		}
	}
	_, err := f.options()
	return err
}

// options returns what the flags say about the clients.
func (f *lintFlags) options() (lint.Options, error) {
	elsewhere := map[graph.ID]bool{}
	for _, resource := range f.elsewhere {
		word, name, ok := strings.Cut(resource, "=")
		if !ok || name == "" {
			return lint.Options{}, fmt.Errorf("--elsewhere %q: want TYPE=NAME", resource)
		}
		typeURL, err := xdstype.Parse(word)
		if err != nil {
			return lint.Options{}, fmt.Errorf("--elsewhere: %w", err)
		}
		elsewhere[graph.ID{TypeURL: typeURL, Name: name}] = true
	}
	return lint.Options{
		For:       taster.Family(f.family),
		Elsewhere: func(id graph.ID) bool { return elsewhere[id] },
	}, nil
}

// files checks files and directories. An error means that it cannot read them.
func (f *lintFlags) files(paths []string, report *lintReport) error {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	written, ignored, err := directory.Read(paths...)
	var unreadable fileerrors.List
	if err != nil && !errors.As(err, &unreadable) {
		return err
	}
	f.inFiles(lint.ReadableFile, unreadable, report)
	f.inFiles(lint.KnownFields, ignored, report)
	resources := make([]lint.Resource, len(written))
	for i, w := range written {
		resources[i] = lint.Resource{TypeURL: w.TypeURL, Name: w.Name, Value: w.Value}
	}
	options, err := f.options()
	if err != nil {
		return err
	}
	options.Part = len(unreadable) > 0
	f.look(resources, options, report, func(found lint.Finding, line *lintFinding) {
		line.File, line.Line = written[found.Resource].File, written[found.Resource].Line(found.Path)
	})
	return nil
}

// inFiles adds what the reader of files has found to a report.
func (f *lintFlags) inFiles(rule *lint.Rule, found fileerrors.List, report *lintReport) {
	if slices.Contains(f.skip, rule.ID) {
		return
	}
	for _, e := range found {
		report.add(lintFinding{File: e.File, Line: e.Line, Severity: rule.Severity, Rule: rule.ID, Path: e.Path, Text: e.Err.Error(), Source: rule.Source})
	}
}

// look adds the findings of resources to a report. place says where a finding is.
func (f *lintFlags) look(resources []lint.Resource, options lint.Options, report *lintReport, place func(lint.Finding, *lintFinding)) {
	report.Resources += len(resources)
	for _, found := range lint.Check(resources, options) {
		if slices.Contains(f.skip, found.ID) {
			continue
		}
		r := resources[found.Resource]
		line := lintFinding{
			Severity: found.Severity, Rule: found.ID, RejectedBy: found.RejectedBy,
			Type: xdstype.Word(r.TypeURL), TypeURL: r.TypeURL, Name: r.Name,
			Path: found.Path, Text: found.Text, Source: found.Source,
		}
		place(found, &line)
		report.add(line)
	}
}
