// Command xds-relay is a relay and caching proxy for xDS, with tools that inspect any xDS server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay"
)

func main() {
	os.Exit(run(untilSignal(), os.Args[1:], os.Stdout, os.Stderr))
}

// untilSignal returns a context that the first SIGTERM or SIGINT ends. With SIGTERM its cause is
// relay.ErrDrain, so the relay drains. A second signal ends the process at once.
func untilSignal() context.Context {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		var cause error
		if <-signals == syscall.SIGTERM {
			cause = relay.ErrDrain
		}
		end(cause)
		second := <-signals
		signal.Reset() // restores the default action, which ends the process
		if self, err := os.FindProcess(os.Getpid()); err != nil || self.Signal(second) != nil {
			os.Exit(statusFailed)
		}
	}()
	return ctx
}

// run runs a command and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	status := &exitError{status: statusFailed, err: err}
	errors.As(err, &status)
	if status.err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", command.CommandPath(), status.err)
	}
	if status.status == statusUsage {
		fmt.Fprintf(stderr, "run %s --help for usage\n", command.CommandPath())
	}
	return status.status
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "xds-relay",
		Short: "A relay and caching proxy for xDS",
		Long: `xds-relay stands between xDS control planes and their clients. It caches every resource
once, and serves it to any number of Envoy and gRPC clients.`,
		Args: usageArgs(func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
				return fmt.Errorf("unknown command %q, did you mean %q?", args[0], similar[0])
			}
			return fmt.Errorf("unknown command %q", args[0])
		}),
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:              true, // run prints them, once
		SilenceUsage:               true, // the usage would hide the error
		SuggestionsMinimumDistance: 2,
	}
	root.Version = operator.Build().String()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	root.AddCommand(newServeCommand(), newCheckCommand(), newReloadCommand(), newVersionCommand(), newSchemaCommand(), newGetCommand(), newWatchCommand(), newStoreCommand(), newRolloutCommand(), newBootstrapCommand(), newStatusCommand(), newClientsCommand(), newExplainCommand(), newDiffCommand(), newChangesCommand(), newLintCommand())
	root.AddCommand(extra...)
	return root
}

// extra are commands of special builds.
var extra []*cobra.Command

// Exit statuses, the same for all commands.
const (
	statusNotAll = 1 // the command ran, and its answer is negative or incomplete
	statusUsage  = 2 // the command line is wrong
	statusFailed = 3 // the command could not do its work; also for errors without a status
)

// exitError is an error with an exit status. If err is nil, the command has already printed the errors.
type exitError struct {
	status int
	err    error
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

// Unwrap returns err.
func (e *exitError) Unwrap() error { return e.err }

// usageError marks an error of the command line.
func usageError(err error) error {
	return &exitError{status: statusUsage, err: err}
}

// usageArgs marks the errors of an argument check as errors of the command line.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError(err)
		}
		return nil
	}
}
