package main

// `xds-relay changes` shows what has changed and what was done in a running relay.

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

// followEvery is how often --follow asks the relay.
const followEvery = time.Second

type changesFlags struct {
	adminQuery
	since, typeName, name, client, authority string
	limit                                    int
	follow                                   bool
}

func newChangesCommand() *cobra.Command {
	var f changesFlags
	cmd := &cobra.Command{
		Use:   "changes [SEARCH] [--since 10m] [--admin HOST:PORT]",
		Short: "Show what has changed, and what was done, in a running relay",
		Long: `Show the last changes of what a running relay serves, with their differences, and what was done: reloads,
failovers, approvals, rollouts, lost control planes, new certificates. It is one list, the oldest first. SEARCH is a
part of a name, version, control plane or event. Of secrets, it shows only that they have changed.

The relay keeps as much as a fixed amount of memory has room for, and forgets it when it ends.

Exit status:
  0  something matches; with --follow: Ctrl-C
  1  nothing matches, or there is no such client
  2  the command line is wrong
  3  there was no answer from the admin listener`,
		Example: `  xds-relay changes --since 10m
  xds-relay changes --type listener --name ingress
  xds-relay changes --client envoy-web-1 --follow`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.since, "since", "", "only since this `TIME`: a duration such as 10m, or a time such as 2006-01-02T15:04:05Z (default all that is kept)")
	flags.StringVarP(&f.typeName, "type", "t", "", "only resources of this `TYPE`")
	flags.StringVar(&f.name, "name", "", "only the resource with this `NAME`, with all of its difference")
	flags.StringVar(&f.client, "client", "", "only what this `CLIENT` is subscribed to: a node id, #NUMBER of a stream, or a part of a node id that one client has")
	flags.StringVar(&f.authority, "authority", "", "only what is of this `AUTHORITY`")
	flags.IntVar(&f.limit, "limit", 200, "print at most this many `CHANGES`, the newest, up to 1000")
	flags.BoolVar(&f.follow, "follow", false, "print further changes until Ctrl-C")
	completeTypes(cmd, "type")
	f.completeAuthorities(cmd, "authority")
	return cmd
}

func (f *changesFlags) values(args []string) (url.Values, error) {
	v := url.Values{"limit": {strconv.Itoa(f.limit)}, "differences": {"true"}}
	if f.typeName != "" {
		if _, err := xdstype.Parse(f.typeName); err != nil {
			return nil, usageError(fmt.Errorf("--type: %w", err))
		}
	}
	search := ""
	if len(args) > 0 {
		search = args[0]
	}
	for key, value := range map[string]string{"since": f.since, "type": f.typeName, "name": f.name, "client": f.client, "authority": f.authority, "search": search} {
		if value != "" {
			v.Set(key, value)
		}
	}
	return v, nil
}

func (f *changesFlags) run(cmd *cobra.Command, args []string) error {
	values, err := f.values(args)
	if err != nil {
		return err
	}
	p := changePrinter{out: cmd.OutOrStdout(), whole: f.name != ""}
	var list operator.ChangeList
	if !f.follow {
		return f.ask(cmd, "/api/changes", values, &list, func(io.Writer) { p.list(&list) }, func() bool { return len(list.Changes) > 0 })
	}
	if f.output != "text" && f.output != "json" {
		return usageError(fmt.Errorf("--output %s: want text or json", f.output))
	}
	if err := f.check(); err != nil {
		return err
	}
	values.Set("settled", "true")
	for {
		list = operator.ChangeList{}
		err := f.do(cmd.Context(), http.MethodGet, "/api/changes", values, &list)
		if cmd.Context().Err() != nil {
			return nil //nolint:nilerr // the user has ended it
		}
		if err != nil {
			return err
		}
		for i := range list.Changes {
			if f.output == "text" {
				p.entry(&list.Changes[i])
				continue
			}
			text, err := json.Marshal(&list.Changes[i]) // one line for each
			if err != nil {
				return err
			}
			p.printf("%s\n", text)
		}
		if p.err != nil {
			return &exitError{status: statusFailed, err: fmt.Errorf("writing the output: %w", p.err)}
		}
		values.Set("after", strconv.FormatUint(list.Newest, 10))
		values.Del("since")
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(followEvery):
		}
	}
}

// changePrinter prints changes as text. After a failed write, err is set.
type changePrinter struct {
	out   io.Writer
	whole bool // differences are not cut
	err   error
}

func (p *changePrinter) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format, args...)
	}
}

func (p *changePrinter) list(l *operator.ChangeList) {
	if l.Older {
		p.printf("(there are older ones: raise --limit, or ask for less)\n")
	}
	for i := range l.Changes {
		p.entry(&l.Changes[i])
	}
	if len(l.Changes) == 0 {
		p.printf("nothing matches: the relay keeps no such change\n")
	}
}

// entry prints an entry: a line, and lines about the resources below it.
func (p *changePrinter) entry(e *operator.ChangeEntry) {
	p.printf("%s  ", e.At.UTC().Format("2006-01-02 15:04:05.000"))
	if v := e.Event; v != nil {
		p.printf("[%s] ", v.Kind)
		if v.Severity != "info" {
			p.printf("%s: ", v.Severity)
		}
		p.printf("%s", oneLine(v.Text))
		if e.Authority != "" {
			p.printf(" authority=%s", oneLine(e.Authority))
		}
		for _, d := range v.Details {
			p.printf(" %s=%s", oneLine(d.Key), oneLine(d.Value))
		}
		p.printf("\n")
		return
	}
	p.printf("%s: %s", e.Type, e.Words())
	where := e.Authority
	if e.Partition != "" {
		where += "/" + e.Partition
	}
	p.printf(" of %s", oneLine(where))
	if from := e.From(); from != "" {
		p.printf(" from %s", oneLine(from))
	}
	if e.Version != "" {
		p.printf(" version %s", oneLine(e.Version))
	}
	if e.Response > 0 {
		p.printf(" (response %d, nonce %s)", e.Response, oneLine(e.Nonce))
	}
	if because := e.Because(); because != "" {
		p.printf(": %s", because)
	}
	p.printf("\n")
	if reached := e.Reached(); reached != "" {
		p.printf("    %s\n", reached)
	}
	for _, k := range e.KeptBack {
		p.printf("    %s keeps back %s\n", k.By, strconv.Quote(k.Name))
	}
	for i := range e.Resources {
		p.resource(&e.Resources[i])
	}
	if e.Unnamed > 0 {
		p.printf("    and %d more\n", e.Unnamed)
	}
}

// mostLines bounds the lines of one difference.
const mostLines = 40

func (p *changePrinter) resource(r *operator.ChangedResource) {
	sign := map[string]string{operator.ChangeAdded: "+", operator.ChangeRemoved: "-", operator.ChangeChanged: "~"}[r.Change]
	p.printf("    %s %s", sign, strconv.Quote(r.Name))
	if r.Old != "" || r.New != "" {
		p.printf(" %s -> %s", oneLine(orNone(r.Old)), oneLine(orNone(r.New)))
	}
	if r.Unshown != "" {
		p.printf(" (%s)", r.Unshown)
	}
	p.printf("\n")
	if r.Change != operator.ChangeChanged && !p.whole {
		return // all of it is new, or gone
	}
	n := 0
	for line := range strings.Lines(r.Difference) {
		if strings.HasPrefix(line, "--- before") || strings.HasPrefix(line, "+++ after") {
			continue
		}
		if n++; n > mostLines && !p.whole {
			p.printf("        ... (--name shows all)\n")
			return
		}
		p.printf("        %s\n", oneLine(strings.TrimSuffix(line, "\n")))
	}
}

func orNone(version string) string {
	if version == "" {
		return "none"
	}
	return version
}
