package main

// `xds-relay check --against` asks a running relay what a configuration would change.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/operator"
)

type againstFlags struct {
	relay   string
	output  string
	timeout time.Duration
	tls     tlsFlags
}

func (f *againstFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.relay, "against", "", "ask the running relay whose admin listener is at this `URL`, http://HOST:PORT, https://HOST:PORT, HOST:PORT or unix:PATH, what the configuration would change")
	flags.StringVarP(&f.output, "output", "o", "text", "with --against: text or json")
	flags.DurationVar(&f.timeout, "timeout", 30*time.Second, "with --against: how long to wait for the answer; with --connect, for each answer")
	f.tls.register(flags)
	flags.Lookup("server-name").Usage = "the `NAME` in the relay's certificate, if not the host of --against"
}

// given reports whether the command line has --against.
func (f *againstFlags) given(flags *pflag.FlagSet) bool { return flags.Changed("against") }

// checkAgainst prints what the file would change in the relay.
func (f *checkFlags) checkAgainst(cmd *cobra.Command) error {
	a := &f.against
	switch {
	case f.name != "":
		return usageError(errors.New("--name does not go with --against"))
	case len(f.set) > 0:
		return usageError(errors.New("--set does not go with --against: the relay applies its own flags and environment"))
	case a.output != "text" && a.output != "json":
		return usageError(fmt.Errorf("--output %s: want text or json", a.output))
	case a.timeout <= 0:
		return usageError(fmt.Errorf("--timeout %v: want more than 0", a.timeout))
	}
	path := f.settings.Option(optionConfig)
	text, err := os.ReadFile(path)
	if err != nil {
		return &exitError{status: statusFailed, err: err}
	}
	changes, err := a.ask(cmd.Context(), path, text)
	if err != nil {
		return err
	}
	switch {
	case a.output == "json":
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		if err := e.Encode(changes); err != nil {
			return err
		}
	case len(changes.Errors) == 0:
		for _, w := range changes.Warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", w)
		}
		printChanges(cmd.OutOrStdout(), changes)
	default:
		for _, e := range changes.Errors {
			fmt.Fprintln(cmd.ErrOrStderr(), e)
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "the relay would not load it, and would keep its configuration")
	}
	if len(changes.Errors) > 0 {
		return &exitError{status: statusNotAll}
	}
	return nil
}

// ask asks the relay what a configuration would change.
func (f *againstFlags) ask(ctx context.Context, name string, text []byte) (*operator.Changes, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	failed := func(err error) (*operator.Changes, error) { return nil, &exitError{status: statusFailed, err: err} }
	answer, err := requestOperator(ctx, f.relay, "--against", f.tls, http.MethodPost, url.URL{Path: "/check", RawQuery: url.Values{"name": {name}}.Encode()}, "application/yaml", bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	const most = 64 << 20
	body, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return failed(err)
	}
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusUnprocessableEntity {
		return failed(fmt.Errorf("the relay answers %s: %s", answer.Status, strings.TrimSpace(string(body))))
	}
	changes := &operator.Changes{}
	if err := json.Unmarshal(body, changes); err != nil || changes.Running == "" {
		return failed(fmt.Errorf("%s is not an admin listener of xds-relay: %s", f.relay, strings.TrimSpace(string(body[:min(len(body), 200)]))))
	}
	return changes, nil
}

// printChanges prints changes for people.
func printChanges(out io.Writer, c *operator.Changes) {
	if c.Running == c.Checked {
		fmt.Fprintf(out, "configuration: the relay already runs it (%s)\n", c.Running)
	} else {
		fmt.Fprintf(out, "configuration: the relay runs %s, the file is %s\n", c.Running, c.Checked)
	}
	for _, l := range c.Listeners {
		fmt.Fprintf(out, "listener %s: %s\n", l.Address, describeListenerChange(l))
	}
	for _, a := range c.Authorities {
		fmt.Fprintf(out, "authority %s: %s\n", a.Authority, describeAuthorityChange(a))
	}
	if len(c.Keys) > 0 {
		fmt.Fprintf(out, "other keys that change: %s\n", strings.Join(c.Keys, ", "))
	}
	if s := c.Streams; s != nil {
		least := ""
		if s.EndNotAdmitted > 0 && c.Names != nil && !c.Names.Complete {
			least = "at least "
		}
		fmt.Fprintf(out, "streams: %d open; %d end with their listeners, %s%d because the listener does not admit their clients any more\n",
			s.Open, s.EndWithListener, least, s.EndNotAdmitted)
	}
	if n := c.Names; n != nil {
		printNameChanges(out, n)
	}
}

func describeListenerChange(l operator.ListenerChange) string {
	switch l.Change {
	case operator.ChangeAdded:
		return "new"
	case operator.ChangeRemoved:
		return fmt.Sprintf("removed; its %d streams end", l.Streams)
	}
	if len(l.Keys) == 0 {
		return fmt.Sprintf("opened again, because its socket had failed; its %d streams stay", l.Streams)
	}
	keys := strings.Join(l.Keys, ", ")
	if l.NewConnections {
		return fmt.Sprintf("%s changed, for new connections; clients are asked to reconnect (GOAWAY); its %d streams stay", keys, l.Streams)
	}
	return fmt.Sprintf("%s changed; its %d streams stay", keys, l.Streams)
}

func describeAuthorityChange(a operator.AuthorityChange) string {
	switch a.Change {
	case operator.ChangeAdded:
		return "new"
	case operator.ChangeRemoved:
		return "removed"
	}
	text := "its own keys stay"
	if len(a.Keys) > 0 {
		text = strings.Join(a.Keys, ", ") + " changed"
	}
	if a.NewStreams {
		text += "; the relay opens its streams to control planes again, or its directory"
	}
	return text
}

func printNameChanges(out io.Writer, n *operator.NameChanges) {
	least := ""
	if !n.Complete {
		least = "at least "
		fmt.Fprintf(out, "names: the relay counted only %d, because there are too many\n", n.Counted)
	}
	fmt.Fprintf(out, "names: %s%d subscriptions; of them %s%d move, %s%d are denied, %s%d are not served any more, %s%d are allowed that are refused now\n",
		least, n.Counted, least, n.Move, least, n.Denied, least, n.Lost, least, n.Allowed)
	shown := 0
	for _, m := range n.Moves {
		shown += m.Names
		to := m.To
		if to == m.From {
			to = "another set of topics there"
		}
		fmt.Fprintf(out, "  %d move from %s to %s\n", m.Names, m.From, to)
	}
	if more := n.Move - shown; more > 0 {
		fmt.Fprintf(out, "  %d move between other places\n", more)
	}
}
