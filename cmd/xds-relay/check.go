package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/relay"
	"github.com/xds-relay/xds-relay/store"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

type checkFlags struct {
	settingsFlags
	settings *configs.Overrides
	name     string
	typeName string
	node     nodeFlags
	identity string // a file
	connect  bool
	against  againstFlags
}

func newCheckCommand() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use: `check [--config] FILE [--connect] [--name NAME [--type TYPE] [--node FILE] [--identity FILE]]
  xds-relay check --against http://HOST:PORT|unix:PATH [--config] FILE`,
		Short: "Print the errors of a configuration, or what it does",
		Long: `Print every error of a configuration, and of the files and directories that it names.
If there is none, print what each authority, each rule for old-style names, each view and
each rule of rights does, and warn of dangerous settings. Without --connect and --against, the command makes
no connections.

With --connect, also connect to each control plane with the TLS, token and form of xDS of the configuration, ask for its
clusters and listeners as a client with the given Node, and print what it answers, or what failed and why. --timeout bounds
each answer (5s). A control plane that is silent is no error: many answer only Nodes that they know.

With --name, print which view, or which authority, partition and source, serves that name
to a client with the given Node; and whether a client with the given identity may have it,
and which rule of rights says so. The file has the keys of identity in expressions:
source (mtls, jwt, unix or none), spiffe_id, dns_names, subject, claims, uid.

With --against, print what the file would change in a running relay: which listeners and authorities
it adds, removes and changes, which streams would end, and how many of the names that clients subscribe
to would be served from elsewhere, be denied, or be allowed. If the relay would not load the file, print
all reasons. The relay itself changes nothing. It reads the files that the configuration names, and
applies its own environment and flags.

` + settingsHelp + ` stands for --config.

Exit status: 0 if there is no error, also with warnings; 1 if the configuration has an error, the
relay would not load it, or nothing serves the name; 2 for a wrong command line; 3 if a file cannot
be read, or the relay does not answer.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := configArgument(cmd.Flags(), args); err != nil {
				return err
			}
			var err error
			if f.settings, err = f.overrides(cmd.Flags()); err != nil {
				return err
			}
			if f.settings.Option(optionConfig) == "" {
				return usageError(errors.New("--config is missing"))
			}
			if f.name == "" && (f.typeName != "" || f.identity != "") {
				return usageError(errors.New("--type and --identity go with --name"))
			}
			if f.name == "" && !f.connect && f.node != (nodeFlags{}) {
				return usageError(errors.New("--node goes with --name or --connect"))
			}
			if f.connect && (f.name != "" || f.against.given(cmd.Flags())) {
				return usageError(errors.New("--connect goes neither with --name nor with --against"))
			}
			if f.against.given(cmd.Flags()) {
				return f.checkAgainst(cmd)
			}
			if f.name != "" {
				return f.explain(cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			if err := f.check(cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil || !f.connect {
				return err
			}
			return f.tryServers(cmd)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.register(flags)
	flags.StringVar(&f.name, "name", "", "explain what serves this resource `NAME`; \"*\" is the wildcard")
	flags.StringVarP(&f.typeName, "type", "t", "", "the `TYPE` of --name; xdstp names contain it")
	f.node.register(flags)
	flags.StringVar(&f.identity, "identity", "", "read the client's authenticated identity from this `FILE`, in JSON or YAML (default: anonymous)")
	flags.BoolVar(&f.connect, "connect", false, "connect to each control plane, and ask for its first resources")
	f.against.register(flags)
	return cmd
}

// tryServers connects to the control planes.
func (f *checkFlags) tryServers(cmd *cobra.Command) error {
	node, err := f.node.node()
	if err != nil {
		return usageError(err)
	}
	within := connectWithin
	if cmd.Flags().Changed("timeout") {
		within = f.against.timeout
	}
	if within <= 0 {
		return usageError(fmt.Errorf("--timeout %v: want more than 0", within))
	}
	cfg, err := f.load(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if !connect(cmd.Context(), cfg, node, within, cmd.OutOrStdout(), cmd.ErrOrStderr()) {
		return &exitError{status: statusNotAll}
	}
	return nil
}

// load reads the configuration. It prints its errors to stderr.
func (f *checkFlags) load(stderr io.Writer) (*configs.Config, error) {
	cfg, err := f.settings.Load(f.settings.Option(optionConfig))
	var wrong configs.Errors
	if errors.As(err, &wrong) {
		fmt.Fprintln(stderr, wrong)
		return nil, &exitError{status: statusNotAll}
	}
	return cfg, err
}

func (f *checkFlags) check(stdout, stderr io.Writer) error {
	cfg, err := f.load(stderr)
	if err != nil {
		return err
	}
	fine := true
	if err := cfg.CheckFiles(); err != nil {
		fine = false
		fmt.Fprintln(stderr, err)
	} else if err := useDescriptors(cfg.Descriptors); err != nil {
		return err
	}
	for i, a := range cfg.Authorities {
		if a.Directory == "" {
			continue
		}
		tally := taster.NewTally(relay.CheckMode(a.Check), slog.New(slog.DiscardHandler))
		resources, ignored, err := directory.Load(a.Directory, a.Name, tally)
		for _, part := range ignored {
			fmt.Fprintf(stderr, "warning: authorities[%d].directory: ignored: %v\n", i, part)
		}
		if err != nil {
			fine = false
			fmt.Fprintf(stderr, "authorities[%d].directory:\n%v\n", i, err)
			continue
		}
		fmt.Fprintf(stdout, "authorities[%d].directory: %s has %d resources\n", i, a.Directory, len(resources))
	}
	fine = checkStore(cfg.Store, stdout, stderr) && fine
	if !fine {
		return &exitError{status: statusNotAll}
	}
	for _, expired := range cfg.FileWarnings() {
		fmt.Fprintf(stderr, "warning: %v\n", expired)
	}
	for _, key := range f.settings.Keys() {
		fmt.Fprintf(stdout, "%s: set by %s\n", key, f.settings.Origin(key))
	}
	for i, l := range cfg.Listeners {
		fmt.Fprintf(stdout, "listeners[%d]: %s\n", i, describeListener(l))
	}
	if cfg.Admin.Address != "" {
		fmt.Fprintf(stdout, "admin: %s\n", describeAdmin(cfg.Admin))
	}
	if cfg.Fleet != nil {
		fmt.Fprintf(stdout, "fleet: %s\n", describeFleet(cfg.Fleet))
	}
	fmt.Fprint(stdout, authority.New(cfg).Describe())
	fmt.Fprint(stdout, naming.DescribeRights(cfg))
	for _, warning := range cfg.Warnings() {
		fmt.Fprintf(stderr, "warning: %v\n", warning)
	}
	return nil
}

// checkStore prints how many records the store has, or why the relay could not use it.
func checkStore(cfg configs.Store, stdout, stderr io.Writer) (fine bool) {
	if cfg.Path == "" {
		return true
	}
	var key *store.Key
	if cfg.KeyFile != "" {
		var err error
		if key, err = store.ReadKey(cfg.KeyFile); err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // that is an error already
				fmt.Fprintf(stderr, "store.key_file: %v\n", err)
			}
			return false
		}
	}
	records, unreadable, err := store.Check(cfg.Path, key, slog.New(slog.DiscardHandler))
	switch {
	case errors.Is(err, store.ErrInUse):
		fmt.Fprintf(stdout, "store.path: a running relay uses %s\n", cfg.Path)
	case errors.Is(err, fs.ErrNotExist): // the folder, which is an error already
		return false
	case store.SetsAside(err):
		fmt.Fprintf(stderr, "store.path: %v; the relay would set the file aside, and start with an empty store\n", err)
		return false
	case err != nil:
		fmt.Fprintf(stderr, "store.path: %v; the relay would not start\n", err)
		return false
	case unreadable > 0:
		fmt.Fprintf(stderr, "store.path: %s: the relay cannot read %d of %d records, and does not use them\n", cfg.Path, unreadable, records+unreadable)
		return false
	default:
		fmt.Fprintf(stdout, "store.path: %s has %d records\n", cfg.Path, records)
	}
	return true
}

// describeListener returns the protocol, security and services of a listener.
func describeListener(l configs.Listener) string {
	security, services := "plaintext", "v3"
	if l.TLS != nil {
		security = "TLS"
		if l.TLS.SPIFFE.WorkloadAPI != "" {
			security = "TLS by SPIFFE"
		}
		if l.TLS.ClientCAFile != "" || l.TLS.SPIFFE.WorkloadAPI != "" {
			security += " with client certificates"
			if l.TLS.ClientCertificates == configs.ClientCertificatesOptional {
				security += " or without"
			}
		}
	}
	if l.V2 {
		services = "v3 and v2"
	}
	if l.JWT != nil {
		security += ", tokens of " + l.JWT.Issuer
	}
	if l.Admit != "" {
		security += ", admit"
	}
	return fmt.Sprintf("serves clients on %s over %s (%s, %s); polls wait up to %s", l.Address, l.Protocol, services, security, l.LongPoll)
}

// describeAdmin returns where the admin listener is, and who can reach it.
func describeAdmin(a configs.Admin) string {
	reach := "plaintext, for this host only"
	if _, unix := configs.UnixPath(a.Address); unix {
		reach = "plaintext, socket mode " + a.Mode.String()
	}
	if a.TLS != nil {
		reach = "TLS with client certificates"
	}
	return fmt.Sprintf("serves the operator on %s (%s)", a.Address, reach)
}

// describeFleet returns which relays are members, and where they connect.
func describeFleet(f *configs.Fleet) string {
	security, members := "plaintext, for this host only", strings.Join(f.Members.Static, ", ")
	if f.TLS != nil {
		security = "TLS, for members with the id " + f.TLS.ServerID
	}
	switch {
	case f.Members.Etcd != nil:
		members = "those in etcd under " + f.Members.Etcd.Prefix + f.Name
	case f.Members.DNS != "":
		members = "the addresses of " + f.Members.DNS
	}
	return fmt.Sprintf("shares streams to the control planes with the members of %q: %s; serves them on %s (%s)", f.Name, members, f.Listen, security)
}

func (f *checkFlags) explain(stdout, stderr io.Writer) error {
	typeURL, err := typeOf(f.typeName, []string{f.name})
	if err != nil {
		return usageError(err)
	}
	node, err := f.node.node()
	if err != nil {
		return usageError(err)
	}
	id, err := readIdentity(f.identity)
	if err != nil {
		return usageError(err)
	}
	cfg, err := f.load(stderr)
	if err != nil {
		return err
	}
	router, asks := authority.New(cfg), configs.Client{Node: node, Identity: id}
	steps, err := router.Explain(asks, typeURL, f.name)
	fmt.Fprint(stdout, steps)
	if err != nil {
		fmt.Fprintf(stderr, "not served: %v\n", err)
		return &exitError{status: statusNotAll}
	}
	if steps, err = naming.ExplainRights(cfg, router, asks, typeURL, f.name); err != nil {
		fmt.Fprint(stdout, steps)
		fmt.Fprintf(stderr, "not served: the client may not have it: %v\n", err)
		return &exitError{status: statusNotAll}
	}
	fmt.Fprint(stdout, steps)
	_, viewed := router.View(typeURL, f.name, router.ViewMatcher(asks))
	if f.name != cache.Wildcard && !viewed {
		fmt.Fprintf(stdout, "requested upstream as %s %s\n", xdstype.Word(typeURL), f.name)
	}
	return nil
}
