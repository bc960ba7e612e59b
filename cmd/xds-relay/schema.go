package main

import (
	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/configs"
)

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration",
		Long: `Print the JSON Schema of the configuration. Editors use it to complete and explain keys. For
editors with the YAML language server, begin the configuration with
  # yaml-language-server: $schema=schema.json
and write the schema to that file:
  xds-relay schema > schema.json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(configs.Schema)
			return err
		},
	}
}
