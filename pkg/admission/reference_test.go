package admission

import (
	"strconv"
	"testing"

	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/test/reference"
)

// TestReferencePlugins compares docs/reference/admission-plugins.md with the plugins.
func TestReferencePlugins(t *testing.T) {
	table := reference.Table{Header: []string{"order", "plugin", "mutating", "validating", "description"}}
	var config Config
	rig := newRig(t, 0, func(c *Config) { config = *c })
	for i, plugin := range rig.plugins(config) {
		_, mutating := plugin.plugin.(admission.MutationInterface)
		_, validating := plugin.plugin.(admission.ValidationInterface)
		table.Rows = append(table.Rows, []string{strconv.Itoa(i + 1), plugin.name, cell(mutating), cell(validating), plugin.does})
	}
	reference.Compare(t, "admission-plugins.md", `# Admission plugins

This page is generated from the code. [Admission](../admission.md) describes what the plugins allow.

A shard calls all mutating plugins in this order, and then all validating plugins in this order. If
a later plugin has changed the object, mutating policies and webhooks are called again according to
their `+"`reinvocationPolicy`"+`. All plugins are enabled, and no flag changes the order. The front-proxy
and the cache server have no admission plugins.

`+table.String())
}

func cell(set bool) string {
	if set {
		return "x"
	}
	return ""
}
