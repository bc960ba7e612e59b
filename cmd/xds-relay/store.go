package main

// `xds-relay store` inspects a store, and exports and imports its records.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/relay"
	"github.com/xds-relay/xds-relay/store"
)

func newStoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Inspect what a relay has stored, and move it",
		Long: `Inspect the file in which a relay stores the resources that it has accepted (` + "`store`" + ` in the
configuration), and move its records to another relay. The relay that uses the file must not run, except for
xds-relay store export --admin.

FILE is "-", or left out, for standard input or output.

Exit status: 0 for success; 1 if something is missing or cannot be read; 2 for a wrong command
line; 3 if the store cannot be used.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeygenCommand(), newStoreInfoCommand(), newStoreListCommand(), newStoreGetCommand(), newStoreExportCommand(), newStoreImportCommand())
	return cmd
}

// storeFlags say which store.
type storeFlags struct{ path, keyFile string }

func (f *storeFlags) register(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&f.path, "path", "", "the `FILE` of the store")
	cmd.Flags().StringVar(&f.keyFile, "key-file", "", "the key `FILE` of an encrypted store")
}

// key returns the key, nil if there is none.
func (f *storeFlags) key() (*store.Key, error) {
	if f.path == "" {
		return nil, usageError(errors.New("--path is missing"))
	}
	if f.keyFile == "" {
		return nil, nil
	}
	return store.ReadKey(f.keyFile)
}

func storeLog(cmd *cobra.Command) *slog.Logger {
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{ReplaceAttr: loglines.ClipAttr}))
}

// with opens the store, calls do, and closes the store.
func (f *storeFlags) with(cmd *cobra.Command, do func(*store.Store) error) error {
	key, err := f.key()
	if err != nil {
		return err
	}
	s, err := store.OpenReadOnly(f.path, key, storeLog(cmd))
	if errors.Is(err, store.ErrInUse) {
		return fmt.Errorf("%w; end that relay first, or copy the store of the running one: xds-relay store export --admin "+defaultAdmin+" FILE", err)
	}
	if err != nil {
		return err
	}
	return errors.Join(do(s), s.Close())
}

// unreadable reports n records that could not be read; it returns nil if n is 0.
func unreadable(cmd *cobra.Command, n int) error {
	if n == 0 {
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%d records cannot be read\n", n)
	return &exitError{status: statusNotAll}
}

func newKeygenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen [FILE]",
		Short: "Create a key that encrypts a store",
		Long: `Create a key for ` + "`store.key_file`" + `. FILE must not exist yet. Anyone who has the key and the store
can read all that is in it; without the key nobody can.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := store.NewKey()
			if err != nil {
				return err
			}
			return writeTo(cmd, args, func(w io.Writer) error {
				_, err := w.Write(key)
				return err
			})
		},
	}
}

// writeTo calls write with a new file, which args name, or with standard output.
func writeTo(cmd *cobra.Command, args []string, write func(io.Writer) error) error {
	if len(args) == 0 || args[0] == "-" {
		return write(cmd.OutOrStdout())
	}
	const private = 0o600
	f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, private)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		_ = os.Remove(args[0]) // a part of it would pass for all of it
		return err
	}
	return nil
}

func newStoreInfoCommand() *cobra.Command {
	var f storeFlags
	cmd := &cobra.Command{
		Use:   "info --path FILE [--key-file FILE]",
		Short: "Print how much a store has",
		Long:  `Print how much a store has. The command reads all records, so it finds damaged ones.`,
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd, func(s *store.Store) error { return storeInfo(cmd, s) })
		},
	}
	f.register(cmd)
	return cmd
}

func storeInfo(cmd *cobra.Command, s *store.Store) error {
	type kind struct{ scope, typ string }
	type counts struct{ names, sets, members, omitted int }
	of := map[kind]*counts{}
	var all counts
	var oldest, newest time.Time
	bad, err := s.All(func(r *store.Record) bool {
		k := kind{r.Topic.Scope.String(), xdstype.Word(r.Topic.TypeURL)}
		if of[k] == nil {
			of[k] = &counts{}
		}
		for _, c := range []*counts{of[k], &all} {
			switch {
			case r.Set:
				c.sets++
			case r.Topic.IsSet() && r.Resource == nil:
				c.omitted++
			case r.Topic.IsSet():
				c.members++
			default:
				c.names++
			}
		}
		if oldest.IsZero() || r.Time.Before(oldest) {
			oldest = r.Time
		}
		if r.Time.After(newest) {
			newest = r.Time
		}
		return true
	})
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	encrypted := "no"
	if s.Encrypted() {
		encrypted = "yes"
	}
	fmt.Fprintf(out, "size: %d bytes\nencrypted: %s\n", s.Stats().Size, encrypted)
	if all != (counts{}) {
		fmt.Fprintf(out, "oldest record: %s\nnewest record: %s\n", oldest.UTC().Format(time.RFC3339), newest.UTC().Format(time.RFC3339))
	}
	fmt.Fprintf(out, "names: %d\nwildcards and globs: %d, with %d members\nnot stored of these: %d\n", all.names, all.sets, all.members, all.omitted)
	kinds := make([]kind, 0, len(of))
	for k := range of {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b kind) int { return cmp.Or(cmp.Compare(a.scope, b.scope), cmp.Compare(a.typ, b.typ)) })
	for _, k := range kinds {
		c := of[k]
		fmt.Fprintf(out, "%s %s: %d names, %d wildcards and globs with %d members\n", loglines.Clip(k.scope), k.typ, c.names, c.sets, c.members)
	}
	return unreadable(cmd, bad)
}

func newStoreListCommand() *cobra.Command {
	var f storeFlags
	cmd := &cobra.Command{
		Use:   "list --path FILE [--key-file FILE]",
		Short: "Print the names of the resources that a store has",
		Long:  `Print a line for each record: its scope, type and name, the wildcard or glob that it belongs to, its version, when it came and from which server.`,
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd, func(s *store.Store) error {
				out := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(out, "SCOPE\tTYPE\tNAME\tOF\tVERSION\tTIME\tSERVER")
				bad, err := s.All(func(r *store.Record) bool {
					name, set, version := r.Topic.Name, "-", "-"
					switch {
					case r.Set:
						version = "(known as a whole)"
					case r.Topic.IsSet():
						name, set = r.Member, r.Topic.Name
					}
					if r.Resource != nil {
						version = r.Resource.Version()
					} else if !r.Set {
						version = "(not stored)"
					}
					fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Topic.Scope, xdstype.Word(r.Topic.TypeURL), name, set, version,
						r.Time.UTC().Format(time.RFC3339), cmp.Or(r.Server, "-"))
					return true
				})
				if err := errors.Join(err, out.Flush()); err != nil {
					return err
				}
				return unreadable(cmd, bad)
			})
		},
	}
	f.register(cmd)
	return cmd
}

func newStoreGetCommand() *cobra.Command {
	var f storeFlags
	var typeName string
	var print printFlags
	cmd := &cobra.Command{
		Use:   "get --path FILE [--key-file FILE] [--type TYPE] NAME...",
		Short: "Print resources that a store has",
		Long: `Print the resources that a store has under these names, of every authority, partition and
collection, as ` + "`xds-relay get`" + ` does.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := print.check(); err != nil {
				return usageError(err)
			}
			var typeURL string
			if typeName != "" {
				var err error
				if typeURL, err = typeOf(typeName, names); err != nil {
					return usageError(err)
				}
			}
			return f.with(cmd, func(s *store.Store) error { return storeGet(cmd, s, print.printer(cmd.OutOrStdout()), typeURL, names) })
		},
	}
	f.register(cmd)
	cmd.Flags().StringVarP(&typeName, "type", "t", "", "only resources of this `TYPE`")
	print.register(cmd.Flags())
	return cmd
}

func storeGet(cmd *cobra.Command, s *store.Store, out *printer, typeURL string, names []string) error {
	found := map[string]bool{}
	bad, err := s.All(func(r *store.Record) bool {
		name := r.Topic.Name
		if r.Topic.IsSet() {
			name = r.Member
		}
		if r.Resource == nil || !slices.Contains(names, name) || typeURL != "" && r.Topic.TypeURL != typeURL {
			return true
		}
		found[name] = true
		out.resource(&discoveryv3.Resource{
			Name: r.Resource.Name(), Version: r.Resource.Version(),
			Resource: &anypb.Any{TypeUrl: r.Resource.TypeURL(), Value: r.Resource.Value()},
		})
		return out.err == nil
	})
	if err := errors.Join(err, out.err); err != nil {
		return err
	}
	missing := false
	for _, name := range names {
		if !found[name] {
			missing = true
			fmt.Fprintf(cmd.ErrOrStderr(), "%q is not stored\n", name)
		}
	}
	if missing {
		return &exitError{status: statusNotAll}
	}
	return unreadable(cmd, bad)
}

func newStoreExportCommand() *cobra.Command {
	var f storeFlags
	var operator operatorFlags
	cmd := &cobra.Command{
		Use:   "export {--path FILE [--key-file FILE] | --admin HOST:PORT} [FILE]",
		Short: "Write all records of a store, for `import`",
		Long: `Write all records of a store, for ` + "`import`" + `, also on another machine. Encrypted records stay
encrypted, and need the same key there. FILE must not exist yet.

With --admin, write the records of the store of a running relay: a backup while it runs.`,
		Example: "  xds-relay store export --path /var/lib/xds-relay/accepted.db backup.jsonl\n  xds-relay store export --admin 127.0.0.1:19000 backup.jsonl",
		Args:    usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			export := func(w io.Writer) (written, bad int, err error) {
				err = f.with(cmd, func(s *store.Store) error { written, bad, err = s.Export(w); return err })
				return written, bad, err
			}
			if cmd.Flags().Changed("admin") {
				if f.path != "" {
					return usageError(errors.New("--path does not go with --admin: the running relay has it"))
				}
				if err := operator.check(); err != nil {
					return err
				}
				export = func(w io.Writer) (written, bad int, err error) { return operator.export(cmd.Context(), w) }
			} else if f.path == "" {
				return usageError(errors.New("--path is missing, or --admin for a running relay"))
			}
			f.keyFile = operator.tls.key
			var written, bad int
			shown := newProgress(cmd.ErrOrStderr(), "exporting", 0)
			err := writeTo(cmd, args, func(w io.Writer) (err error) {
				written, bad, err = export(io.MultiWriter(w, shown))
				return err
			})
			shown.end()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%d records were exported\n", written)
			return unreadable(cmd, bad)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&f.path, "path", "", "the `FILE` of the store")
	operator.register(cmd.Flags())
	cmd.Flags().Lookup("key-file").Usage = "the key `FILE` of an encrypted store; with --admin, that of --cert-file"
	operator.timeout = time.Hour
	cmd.Flags().Lookup("timeout").DefValue = operator.timeout.String()
	return cmd
}

// export writes the records of a running relay's store.
func (f *operatorFlags) export(ctx context.Context, w io.Writer) (written, bad int, err error) {
	address, err := f.one()
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	answer, err := requestOperator(ctx, address, "--admin", f.tls, http.MethodPost, url.URL{Path: "/store/export"}, "application/x-www-form-urlencoded", nil)
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		const most = 4096
		text, _ := io.ReadAll(io.LimitReader(answer.Body, most))
		if !ofRelayAdmin(answer) {
			return 0, 0, &exitError{status: statusFailed, err: notOfRelay(address, answer)}
		}
		return 0, 0, &exitError{status: statusFailed, err: fmt.Errorf("%s: %s", address, strings.TrimSpace(string(text)))}
	}
	if _, err := io.Copy(w, answer.Body); err != nil {
		return 0, 0, fmt.Errorf("the export broke off: %w", err)
	}
	written, err = strconv.Atoi(answer.Header.Get(relay.ExportedHeader))
	if err == nil {
		bad, err = strconv.Atoi(answer.Header.Get(relay.UnreadableHeader))
	}
	return written, bad, err
}

func newStoreImportCommand() *cobra.Command {
	var f storeFlags
	cmd := &cobra.Command{
		Use:   "import --path FILE [--key-file FILE] [FILE]",
		Short: "Add the records that `export` has written to a store",
		Long: `Add the records that ` + "`export`" + ` has written to a store: a way to fill a relay that cannot reach its
control planes. The command creates the store if it does not exist, and replaces the records that the
store already has.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := f.key()
			if err != nil {
				return err
			}
			in, size := cmd.InOrStdin(), int64(0)
			if len(args) > 0 && args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }()
				in, size = file, sizeOf(file)
			}
			shown := newProgress(cmd.ErrOrStderr(), "importing", size)
			done, err := store.Import(f.path, key, shown.reader(in), storeLog(cmd))
			shown.end()
			if errors.Is(err, store.ErrInUse) {
				return fmt.Errorf("%w; end that relay first", err)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%d records were imported\n", done.Records-done.Secrets)
			if done.Secrets > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d resources that contain secrets were left out: a store without a key file has none\n", done.Secrets)
				return &exitError{status: statusNotAll}
			}
			return nil
		},
	}
	f.register(cmd)
	return cmd
}
