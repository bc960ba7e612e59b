package main

// `xds-relay bootstrap` prints the bootstrap of clients of the relay.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/bootstrap"
	"github.com/xds-relay/xds-relay/configs"
)

// The paths of the client's files, unless flags set others.
const (
	clientCertFile  = "/etc/xds/client.pem"
	clientKeyFile   = "/etc/xds/client-key.pem"
	clientTokenFile = "/var/run/secrets/tokens/xds-relay"
)

type bootstrapFlags struct {
	settingsFlags
	kind     string // of client
	listener int
	servers  []string
	output   string
	node     struct{ id, cluster string }
	tls      bootstrap.TLS
	plain    bool
	token    string

	authorities []string
	noXdstp     bool
	xdstp       bool
	grpc        bootstrap.GRPCOptions
}

func newBootstrapCommand() *cobra.Command {
	var f bootstrapFlags
	cmd := &cobra.Command{
		Use:   "bootstrap --for envoy|grpc [--config FILE] [--server HOST:PORT]...",
		Short: "Print a bootstrap for clients of the relay",
		Long: `Print a bootstrap that makes the relay the control plane of an Envoy or a gRPC client. The
address, TLS, tokens and authorities are those of the configuration, or without one those of
the demo.

Flags set what the configuration does not contain: the address at which clients reach the relay,
their Node, and the paths of their files. If a flag is missing, the command assumes a value and
prints a warning on stderr.

A second --server is the relay that clients use while they cannot reach the first.

` + settingsHelp + ` stands for --config.

Exit status: 0, 1 if the configuration has an error, 2 for a wrong command line, 3 if a file
cannot be read.`,
		Example: `  xds-relay bootstrap --for envoy --config relay.yaml --server relay.example.com:18000 > envoy.yaml
  xds-relay bootstrap --for grpc --config relay.yaml --node-id shop-1 > bootstrap.json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Flags(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.registerAll(cmd.Flags())
	return cmd
}

func (f *bootstrapFlags) registerAll(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&f.kind, "for", "", "the `CLIENT`: envoy or grpc")
	f.register(flags)
	flags.IntVar(&f.listener, "listener", 0, "the index of the listener in the configuration, from 0 (default the first with protocol grpc)")
	flags.StringArrayVarP(&f.servers, "server", "s", nil, "`HOST:PORT` at which clients reach the relay, or unix:/path; a second one is for failover (default the listener's address)")
	flags.StringVar(&f.node.id, "node-id", "", "the `ID` of the client's Node (default this host's name; Envoy's --service-node overrides it)")
	flags.StringVar(&f.node.cluster, "node-cluster", "", "the `CLUSTER` of the client's Node (default the client; Envoy's --service-cluster overrides it)")
	flags.StringVar(&f.tls.CAFile, "ca-file", "", "the roots that the client trusts, a PEM `FILE` (default the system's)")
	flags.StringVar(&f.tls.CertFile, "cert-file", "", "the client's certificate, a PEM `FILE` (default "+clientCertFile+", if the listener requires one)")
	flags.StringVar(&f.tls.KeyFile, "key-file", "", "the key of --cert-file, a PEM `FILE` (default "+clientKeyFile+")")
	flags.StringVar(&f.tls.ServerName, "server-name", "", "the `NAME` in the relay's certificate, if it is not the host of --server; only for envoy")
	flags.StringVar(&f.tls.ServerID, "server-id", "", "the SPIFFE `ID` that the relay's certificate must have; only for envoy")
	flags.StringVar(&f.tls.WorkloadAPI, "workload-api", "", "the client's SPIFFE agent, as unix:/path or tcp://IP:port; only for envoy (default that of the listener, if it has one)")
	flags.StringVar(&f.tls.BundleMapFile, "spiffe-bundle-map", "", "the roots of each trust domain, a `FILE`; only for grpc")
	flags.BoolVar(&f.plain, "plaintext", false, "no TLS, for example because a sidecar proxy adds it")
	flags.StringVar(&f.token, "token-file", "", "the client's token, a `FILE` (default "+clientTokenFile+", if the listener requires one)")
	flags.StringArrayVar(&f.authorities, "authority", nil, "an `AUTHORITY` of xdstp names that a pattern of the configuration covers; can be repeated")
	flags.BoolVar(&f.noXdstp, "no-xdstp", false, "leave out the authorities: clients request old-style names only")
	flags.BoolVar(&f.xdstp, "xdstp", false, "a second stream for xdstp names of resources in which no config source is next to them; only for envoy")
	flags.StringVar(&f.grpc.ServerListener, "server-listener", "", "the `NAME` of the Listener of gRPC servers, with %s for their address; only for grpc (default that of gRFC A36, in the authority of targets without one)")
	flags.StringVar(&f.grpc.CertificateProvider, "certificate-provider", "default", "the `NAME` by which resources refer to the client's certificate; only for grpc")
	flags.StringArrayVar(&f.grpc.Features, "server-feature", nil, "a further `FEATURE` of the server, such as ignore_resource_deletion; only for grpc; can be repeated")
	flags.StringVarP(&f.output, "output", "o", "", "yaml or json (default yaml for envoy; grpc reads json)")
}

// Flags that only one kind of client has.
var (
	envoyFlags = []string{"server-name", "server-id", "workload-api", "xdstp"}
	grpcFlags  = []string{"spiffe-bundle-map", "server-listener", "certificate-provider", "server-feature"}
)

func (f *bootstrapFlags) run(flags *pflag.FlagSet, stdout, stderr io.Writer) error {
	if err := f.check(flags); err != nil {
		return usageError(err)
	}
	o, err := f.overrides(flags)
	if err != nil {
		return err
	}
	cfg, _, err := load(o)
	if err != nil {
		var wrong configs.Errors
		if errors.As(err, &wrong) {
			return &exitError{status: statusNotAll, err: err}
		}
		return err
	}
	listener, at, err := f.choose(cfg, flags.Changed("listener"))
	if err != nil {
		return usageError(err)
	}
	client, err := f.client(cfg, listener, at, func(format string, args ...any) {
		fmt.Fprintf(stderr, "warning: "+format+"\n", args...)
	})
	if err != nil {
		return usageError(err)
	}
	text, err := f.print(client)
	if err != nil {
		return usageError(err)
	}
	_, err = stdout.Write(text)
	return err
}

// check checks the flags, without the configuration.
func (f *bootstrapFlags) check(flags *pflag.FlagSet) error {
	others := grpcFlags
	switch f.kind {
	case "envoy":
	case "grpc":
		others = envoyFlags
	case "":
		return errors.New("--for is missing (want envoy or grpc)")
	default:
		return fmt.Errorf("--for %s: want envoy or grpc", f.kind)
	}
	for _, name := range others {
		if flags.Changed(name) {
			return fmt.Errorf("--%s is not for %s", name, f.kind)
		}
	}
	switch {
	case f.output == "" && f.kind == "grpc" || f.output == "json":
		f.output = "json"
	case f.output == "" || f.output == "yaml" && f.kind == "envoy":
		f.output = "yaml"
	case f.output == "yaml":
		return errors.New("--output yaml: gRPC reads its bootstrap as JSON (want json)")
	default:
		return fmt.Errorf("--output %s: want yaml or json", f.output)
	}
	if (f.tls.CertFile == "") != (f.tls.KeyFile == "") {
		return errors.New("--cert-file and --key-file go together")
	}
	if f.plain && (f.tls != bootstrap.TLS{} || f.token != "") {
		return errors.New("--plaintext does not go with files, names or tokens of TLS")
	}
	if f.xdstp && f.noXdstp {
		return errors.New("--xdstp and --no-xdstp contradict each other")
	}
	if f.kind == "envoy" && len(f.authorities) > 0 && !f.xdstp {
		return errors.New("--authority has no effect on an Envoy without --xdstp: its stream is for the names of all authorities")
	}
	if f.tls.WorkloadAPI != "" {
		if err := configs.CheckWorkloadAPI(f.tls.WorkloadAPI); err != nil {
			return fmt.Errorf("--workload-api: %w", err)
		}
	}
	for _, address := range f.servers {
		if err := bootstrap.CheckServer(address); err != nil {
			return fmt.Errorf("--server %w", err)
		}
	}
	return nil
}

// choose returns the listener, and its path in the configuration.
func (f *bootstrapFlags) choose(cfg *configs.Config, given bool) (*configs.Listener, string, error) {
	i := f.listener
	if !given {
		i = slices.IndexFunc(cfg.Listeners, func(l configs.Listener) bool { return l.Protocol == configs.ListenerGRPC })
		if i < 0 {
			return nil, "", errors.New("no listener of the configuration has protocol grpc, which the clients of a bootstrap speak")
		}
	}
	at := fmt.Sprintf("listeners[%d]", i)
	if i < 0 || i >= len(cfg.Listeners) {
		return nil, "", fmt.Errorf("--listener %d: the configuration has %d listeners, from 0", i, len(cfg.Listeners))
	}
	if l := &cfg.Listeners[i]; l.Protocol == configs.ListenerGRPC {
		return l, at, nil
	}
	return nil, "", fmt.Errorf("--listener %d: %s has protocol %s (want one with grpc)", i, at, cfg.Listeners[i].Protocol)
}

// client returns the client that the configuration and the flags describe.
func (f *bootstrapFlags) client(cfg *configs.Config, l *configs.Listener, at string, warn func(format string, args ...any)) (bootstrap.Client, error) {
	c := bootstrap.ForListener(cfg, l)
	if len(f.servers) > 0 {
		c.Servers = f.servers
	}
	host, err := os.Hostname()
	if err != nil {
		return c, err
	}
	if len(c.Servers) == 0 {
		_, port, err := net.SplitHostPort(l.Address)
		if err != nil || port == "0" {
			return c, fmt.Errorf("--server is missing: %s has no fixed port (want HOST:PORT, as clients see the relay)", at)
		}
		c.Servers = []string{net.JoinHostPort(host, port)}
		warn("%s is every interface of its host: the bootstrap has %s (--server sets another)", at, c.Servers[0])
	}
	if len(f.servers) == 0 && configs.IsLoopback(c.Servers[0]) {
		warn("%s is on the loopback of its host: the bootstrap is for clients there (--server sets another)", at)
	}
	if c.NodeID = f.node.id; c.NodeID == "" {
		c.NodeID = host
		own := ""
		if f.kind == "envoy" {
			own = ", or start each with --service-node"
		}
		warn("the Node id is %s: many control planes take clients with the same id for one (--node-id sets it%s)", host, own)
	}
	if c.Cluster = f.node.cluster; c.Cluster == "" {
		c.Cluster = f.kind
	}
	f.credentials(&c, l, at, warn)
	return c, f.chooseAuthorities(cfg, &c, warn)
}

// credentials completes TLS and the token.
func (f *bootstrapFlags) credentials(c *bootstrap.Client, l *configs.Listener, at string, warn func(format string, args ...any)) {
	if f.plain {
		c.TLS = nil
		if bootstrap.NeedsCertificate(l) || bootstrap.NeedsToken(l) {
			warn("%s requires a certificate or a token, and the bootstrap has none: the proxy that adds TLS has to add it", at)
		}
	} else if c.TLS != nil || f.tls != (bootstrap.TLS{}) || f.token != "" {
		t := f.tls
		if t.WorkloadAPI == "" && c.TLS != nil && t.CAFile == "" && t.CertFile == "" && f.kind == "envoy" {
			t.WorkloadAPI = c.TLS.WorkloadAPI
		}
		if bootstrap.NeedsCertificate(l) && t.WorkloadAPI == "" && t.CertFile == "" {
			t.CertFile, t.KeyFile = clientCertFile, clientKeyFile
			warn("%s requires a certificate: the bootstrap has %s and %s (--cert-file and --key-file set others)", at, t.CertFile, t.KeyFile)
		}
		if t.WorkloadAPI != "" && t.ServerID == "" {
			warn("the client accepts every workload of its trust domain as the relay (--server-id sets the relay's SPIFFE ID)")
		}
		c.TLS = &t
		f.warnOfTLS(c, warn)
	}
	if c.TokenFile = f.token; c.TokenFile == "" && !f.plain && bootstrap.NeedsToken(l) {
		c.TokenFile = clientTokenFile
		warn("%s requires a token: the bootstrap has %s (--token-file sets another)", at, c.TokenFile)
	}
	if c.TokenFile != "" && f.kind == "grpc" {
		warn("gRPC-Go sends tokens only if the environment has GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS=true")
	}
}

// warnOfTLS warns of surprising ways in which clients use their files.
func (f *bootstrapFlags) warnOfTLS(c *bootstrap.Client, warn func(format string, args ...any)) {
	unix := func(address string) bool { _, is := configs.UnixPath(address); return is }
	switch t := c.TLS; {
	case f.kind == "envoy" && t.WorkloadAPI == "":
		if t.CAFile == "" {
			warn("Envoy does not find the system's roots by itself: the bootstrap has %s (--ca-file sets another)", bootstrap.SystemRoots)
		}
		if t.CertFile != "" {
			warn("Envoy reads its certificate once, when it starts (docs/bootstrap.md has a workaround)")
		}
	case f.kind == "grpc" && t.BundleMapFile != "":
		warn("gRPC-Go reads --spiffe-bundle-map only if the environment has GRPC_EXPERIMENTAL_XDS_MTLS_SPIFFE=true; it then accepts every workload of these trust domains as the relay")
	case f.kind == "grpc" && slices.ContainsFunc(c.Servers, unix):
		warn("gRPC verifies the name localhost over a unix socket")
	}
}

// chooseAuthorities completes the authorities of xdstp names.
func (f *bootstrapFlags) chooseAuthorities(cfg *configs.Config, c *bootstrap.Client, warn func(format string, args ...any)) error {
	router := authority.New(cfg)
	for _, name := range f.authorities {
		var unknown *authority.UnknownAuthorityError
		if _, err := router.Leaf(fmt.Sprintf(bootstrap.ListenerName(name), "x")); errors.As(err, &unknown) {
			return fmt.Errorf("--authority %s: no entry of authorities matches it", name)
		}
		if !slices.Contains(c.Authorities, name) {
			c.Authorities = append(c.Authorities, name)
		}
	}
	if f.noXdstp {
		c.Authorities, c.DefaultAuthority = nil, ""
	}
	c.SecondStream = f.xdstp
	oldStyle := len(cfg.OldStyleNames) > 0
	switch {
	case f.kind == "grpc" && f.grpc.ServerListener == "" && (oldStyle || c.DefaultAuthority != ""):
		f.grpc.ServerListener = bootstrap.ServerListenerName(c.DefaultAuthority)
	case f.kind == "grpc" && !oldStyle && c.DefaultAuthority == "":
		warn("the relay serves no old-style names: write targets with their authority, as in xds://AUTHORITY/NAME, and set --server-listener for gRPC servers")
	case f.kind == "envoy" && !oldStyle && c.DefaultAuthority != "":
		warn("the relay serves no old-style names: the bootstrap requests the globs of %s (set lds_resources_locator and cds_resources_locator to yours)", c.DefaultAuthority)
	case f.kind == "envoy" && !oldStyle:
		warn("the relay serves no old-style names, so this Envoy gets no listeners and clusters: set lds_resources_locator and cds_resources_locator")
	}
	return nil
}

func (f *bootstrapFlags) print(c bootstrap.Client) ([]byte, error) {
	if f.kind == "grpc" {
		return bootstrap.GRPC(c, f.grpc)
	}
	all, err := bootstrap.Envoy(c)
	if err != nil {
		return nil, err
	}
	if f.output == "json" {
		text, err := json.MarshalIndent(all, "", "  ")
		return append(text, '\n'), err
	}
	return yaml.Marshal(all)
}
