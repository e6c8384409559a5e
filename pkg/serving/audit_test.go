package serving_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/serving"
)

// TestAuditPolicies holds that a policy that cannot be used stops the start with
// one line that names the flag and says what is wrong.
func TestAuditPolicies(t *testing.T) {
	dir := t.TempDir()
	o := serving.NewAuditOptions()
	o.LogOptions.Path = filepath.Join(dir, "audit.log")
	require.Len(t, o.Validate(), 1, "a backend without a policy")
	o.PolicyFile = filepath.Join(dir, "policy.yaml")
	require.Empty(t, o.Validate())
	apply := func() error { return o.ApplyTo(&genericapiserver.Config{}) }

	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for name, tc := range map[string]struct{ content, want string }{
		"empty":         {"", "unknown group version"},
		"no YAML":       {"{{{", "failed decoding"},
		"no policy":     {"apiVersion: v1\nkind: ConfigMap\n", "no kind \"ConfigMap\" is registered"},
		"no version":    {"rules: [{level: None}]", "a policy has apiVersion"},
		"no rules":      {head, "0 rules"},
		"unknown level": {head + "rules: [{level: Everything}]", `Unsupported value: "Everything"`},
		"unknown stage": {head + "omitStages: [Later]\nrules: [{level: None}]", `Later`},
	} {
		require.NoError(t, os.WriteFile(o.PolicyFile, []byte(tc.content), 0o600))
		err := apply()
		require.ErrorContains(t, err, "--audit-policy-file: ", name)
		require.ErrorContains(t, err, tc.want, name)
		require.NotContains(t, strings.TrimSpace(err.Error()), "\n", name)
	}
	require.NoError(t, os.Remove(o.PolicyFile))
	require.ErrorContains(t, apply(), "no such file")

	require.NoError(t, os.WriteFile(o.PolicyFile, []byte(head+"rules: [{level: Metadata}]"), 0o600))
	require.NoError(t, apply())
	o.WebhookOptions.ConfigFile = filepath.Join(dir, "missing.yaml")
	require.ErrorContains(t, apply(), "--audit-webhook-config-file")
	o.WebhookOptions.ConfigFile, o.LogOptions.Path = "", ""
	require.Len(t, o.Validate(), 1, "a policy without a backend")
}
