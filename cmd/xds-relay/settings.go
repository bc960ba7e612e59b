package main

// Settings come from the command line, the environment and a file, in this order.

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/configs"
)

// Flags that can also be set by environment variables, such as XDS_RELAY_CONFIG. `check` accepts those
// of `serve`, because both may run in the same environment.
const (
	optionConfig    = "config"
	optionLogLevel  = "log_level"
	optionLogFormat = "log_format"
	optionAdmin     = "admin" // of the commands that use the admin listener: see adminVariable
)

const settingsHelp = `Every key of the configuration can be set by --set KEY=VALUE, and by an environment
variable: XDS_RELAY_CACHE_LINGER sets cache.linger, XDS_RELAY_LISTENERS_0_ADDRESS sets
listeners[0].address. Flags override the environment, and the environment overrides the file.
XDS_RELAY_CONFIG`

// settingsFlags are the flags for the configuration file and for single keys.
type settingsFlags struct {
	config string
	set    []string
}

func (f *settingsFlags) register(flags *pflag.FlagSet) {
	flags.StringVarP(&f.config, "config", "c", "", "the configuration `FILE` (YAML)")
	flags.StringArrayVar(&f.set, "set", nil, "override a key of the configuration with `KEY=VALUE`, such as cache.linger=1m; can be repeated")
}

// overrides returns the settings that override the configuration file. Its option
// optionConfig is the path of that file. Errors are usage errors.
func (f *settingsFlags) overrides(flags *pflag.FlagSet) (*configs.Overrides, error) {
	o := configs.FromEnvironment(optionConfig, optionLogLevel, optionLogFormat, optionAdmin)
	o.BindFlag(optionConfig, flags.Lookup("config"))
	for _, assignment := range f.set {
		if err := o.Set(assignment); err != nil {
			return nil, usageError(err)
		}
	}
	return o, nil
}

// configArgument takes the configuration file from the arguments of a command, instead of --config.
func configArgument(flags *pflag.FlagSet, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if flags.Changed("config") {
		return usageError(errors.New("the file is given twice, with --config and without"))
	}
	if err := flags.Set("config", args[0]); err != nil {
		return usageError(err)
	}
	return nil
}
