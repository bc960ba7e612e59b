package main

// `xds-relay get` prints resources.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func newGetCommand() *cobra.Command {
	var query queryFlags
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "get [--server HOST:PORT] --type TYPE [NAME...]",
		Short: "Request resources from an xDS server, and print them",
		Long: `Request resources by name from an xDS server, and print them. Without a name, request all
resources of the type (the wildcard).

Types: ` + xdstype.Words() + `,
or a type URL. With xdstp names, which contain their type, --type is optional.

Resources go to standard output, as envoy.service.discovery.v3.Resource with
name, version and content. Everything else goes to standard error.

Exit status:
  0  every name was found (without names: at least one resource was)
  1  some name does not exist, has an error, or got no answer in time
  2  the command line is wrong
  3  there was no connection or no stream to the server`,
		Example: `  xds-relay get --type cluster
  xds-relay get --server cp.example.com:443 --tls --type eds backend
  xds-relay get --type listener --protocol sotw --node-id edge-1 -o json
  xds-relay get xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/backend`,
		RunE: func(cmd *cobra.Command, names []string) error {
			server, requested, err := query.parse(names)
			if err != nil {
				return err
			}
			if timeout <= 0 {
				return usageError(fmt.Errorf("--timeout %v: want more than 0", timeout))
			}
			answer, err := client.Get(cmd.Context(), server, requested, timeout)
			out := query.print.printer(cmd.OutOrStdout())
			for _, r := range answer.Resources {
				out.resource(r)
			}
			if err != nil {
				return &exitError{status: statusFailed, err: err}
			}
			if out.err != nil {
				return &exitError{status: statusFailed, err: out.err}
			}
			if !report(cmd, requested, answer, timeout) {
				return &exitError{status: statusNotAll}
			}
			return nil
		},
	}
	query.register(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for answers")
	return cmd
}

// report prints on standard error which names have no resource. It reports whether there are no such
// names, and at least one resource.
func report(cmd *cobra.Command, requested client.Query, answer client.Answer, timeout time.Duration) bool {
	say := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
	word := xdstype.Word(requested.TypeURL)
	for _, missing := range answer.Missing {
		say("%s", doesNotExist(word, missing))
	}
	for _, failed := range answer.Failed {
		say("%s %q: %v", word, failed.Name, failed.Err)
	}
	for _, help := range helps(answer) {
		say("%s", help)
	}
	for _, name := range answer.Unanswered {
		say("%s %q: no answer within %v", word, name, timeout)
	}
	if answer.Unrequested != "" {
		say("the server also sent resources that were not requested, such as %s %q; they are not shown", word, answer.Unrequested)
	}
	wrong := len(answer.Missing) + len(answer.Failed) + len(answer.Unanswered)
	if len(answer.Resources) == 0 && wrong == 0 {
		if answer.Answered {
			say("there is no %s", word)
		} else {
			say("no answer within %v", timeout)
		}
		return false
	}
	return wrong == 0
}

// helps returns hints for the names that a relay refused, each once. It recognizes the
// relay's errors by their texts.
func helps(answer client.Answer) (lines []string) {
	for _, about := range []struct{ says, help string }{
		{"no rule of old_style_names matches", "The relay has no rule for this Node. " + withNode},
		{"].partition cannot be evaluated", "A rule of the relay reads a field that this Node lacks. " + withNode},
		{"is not configured at this relay", "The relay serves only the authorities of its configuration: xds-relay check --config FILE lists them."},
	} {
		said := func(e client.NameError) bool { return e.Err != nil && strings.Contains(e.Err.Error(), about.says) }
		if slices.ContainsFunc(answer.Failed, said) || slices.ContainsFunc(answer.Missing, said) {
			lines = append(lines, about.help)
		}
	}
	return lines
}

const withNode = "Use the Node of one of its clients: --node FILE in JSON or YAML, or --node-id and --node-cluster."

// doesNotExist returns the line about a name that does not exist, with the server's reason if
// it gave one.
func doesNotExist(word string, missing client.NameError) string {
	if missing.Err == nil {
		return fmt.Sprintf("%s %q does not exist", word, missing.Name)
	}
	return fmt.Sprintf("%s %q does not exist: %v", word, missing.Name, missing.Err)
}
