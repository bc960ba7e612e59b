package main

import (
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// descriptorFlags are the flags of commands that read or print resources.
type descriptorFlags struct{ sets []string }

func (f *descriptorFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.sets, "descriptor-set", nil, "also know the message types of this `FILE`, a FileDescriptorSet; can be repeated")
}

// use makes the types of the files known. Its error is a usage error.
func (f *descriptorFlags) use() error {
	if err := useDescriptors(f.sets); err != nil {
		return usageError(err)
	}
	return nil
}

func useDescriptors(files []string) error {
	set, err := descriptors.Load(files...)
	if set != nil {
		descriptors.Use(set)
	}
	return err
}
