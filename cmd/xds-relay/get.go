package main

// `xds-relay get`: what does a server have under these names?

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/xdstype"
)

func newGetCommand() *cobra.Command {
	var query queryFlags
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "get [--server HOST:PORT] --type TYPE [NAME...]",
		Short: "Ask an xDS server for resources, and print them",
		Long: `Asks an xDS server for resources by name, and prints what it has to say.
Without a name, it asks for all resources of the type (the wildcard).

Types: ` + xdstype.Words() + `,
or a type URL. xdstp names have the type in them, and --type can be left out.

Resources go to standard output, as envoy.service.discovery.v3.Resource with
name, version and content. Everything else goes to standard error.

Exit status:
  0  every name was found (without names: at least one resource was)
  1  some name does not exist, got no answer in time, or is in error
  2  the command line is wrong
  3  the server could not be asked`,
		Example: `  xds-relay get --type cluster
  xds-relay get --server cp.example.com:443 --tls --type eds backend
  xds-relay get --type listener --protocol sotw --node-id edge-1 -o json
  xds-relay get xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/backend`,
		RunE: func(cmd *cobra.Command, names []string) error {
			server, asked, err := query.parse(names)
			if err != nil {
				return err
			}
			if timeout <= 0 {
				return usageError(fmt.Errorf("--timeout %v: want more than 0", timeout))
			}
			answer, err := client.Get(cmd.Context(), server, asked, timeout)
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
			if !report(cmd, asked, answer, timeout) {
				return &exitError{status: statusNotAll}
			}
			return nil
		},
	}
	query.register(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for answers")
	return cmd
}

// report says on standard error what is not among the resources, and whether
// that is nothing.
func report(cmd *cobra.Command, asked client.Query, answer client.Answer, timeout time.Duration) bool {
	say := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
	word := xdstype.Word(asked.TypeURL)
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
	if answer.Unasked != "" {
		say("the server also sends what was not asked for, such as %s %q; it is left out", word, answer.Unasked)
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

// helps says what would help with what a relay refuses, each thing once. A relay's errors
// name what in its configuration they are about.
func helps(answer client.Answer) (lines []string) {
	for _, about := range []struct{ says, help string }{
		{"no rule of old_style_names matches", "The relay has no rule for the Node of who asks. " + asWhom},
		{"].partition cannot be evaluated", "A rule of the relay reads a field that the Node of who asks does not have. " + asWhom},
		{"is not configured at this relay", "The relay serves only the authorities of its configuration: xds-relay check --config FILE lists them."},
	} {
		said := func(e client.NameError) bool { return e.Err != nil && strings.Contains(e.Err.Error(), about.says) }
		if slices.ContainsFunc(answer.Failed, said) || slices.ContainsFunc(answer.Missing, said) {
			lines = append(lines, about.help)
		}
	}
	return lines
}

const asWhom = "Ask as one of its clients: --node FILE with the client's Node in JSON or YAML, or --node-id and --node-cluster."

// doesNotExist says so, and why if the server said that.
func doesNotExist(word string, missing client.NameError) string {
	if missing.Err == nil {
		return fmt.Sprintf("%s %q does not exist", word, missing.Name)
	}
	return fmt.Sprintf("%s %q does not exist: %v", word, missing.Name, missing.Err)
}
