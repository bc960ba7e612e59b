package main

// This file is where settings come from: the command line, the environment and a file, in
// this order.

import (
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/configs"
)

// Flags that are variables of the environment too, XDS_RELAY_CONFIG and so on. `check` knows
// all of them, as it runs in the environment of `serve`.
const (
	optionConfig    = "config"
	optionLogLevel  = "log_level"
	optionLogFormat = "log_format"
)

const settingsHelp = `Every key of the configuration can be set by --set KEY=VALUE, and by an environment
variable: XDS_RELAY_CACHE_LINGER sets cache.linger, XDS_RELAY_LISTENERS_0_ADDRESS sets
listeners[0].address. Flags go before the environment, the environment before the file.
XDS_RELAY_CONFIG`

// settingsFlags are the flags that say where the configuration is, and what it has besides.
type settingsFlags struct {
	config string
	set    []string
}

func (f *settingsFlags) register(flags *pflag.FlagSet) {
	flags.StringVarP(&f.config, "config", "c", "", "the configuration `FILE` (YAML)")
	flags.StringArrayVar(&f.set, "set", nil, "a `KEY=VALUE` that goes before the configuration's, such as cache.linger=1m; can be repeated")
}

// overrides returns what goes before the configuration file, which is its option
// optionConfig. Errors are of the command line.
func (f *settingsFlags) overrides(flags *pflag.FlagSet) (*configs.Overrides, error) {
	o := configs.FromEnvironment(optionConfig, optionLogLevel, optionLogFormat)
	o.BindFlag(optionConfig, flags.Lookup("config"))
	for _, assignment := range f.set {
		if err := o.Set(assignment); err != nil {
			return nil, usageError(err)
		}
	}
	return o, nil
}
