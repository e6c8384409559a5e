package library

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinksOnlyUsedPackages checks that users of the public packages link only the kinds that they use, and no servers.
func TestLinksOnlyUsedPackages(t *testing.T) {
	for _, test := range []struct {
		name     string
		packages []string
		kinds    []string
	}{
		{"a controller with its own kind", []string{module + "pkg/client", module + "pkg/reconcile", "k8s.io/client-go/tools/clientcmd"}, nil},
		{"a ring", []string{module + "pkg/client/ring"}, []string{"k8s.io/api/coordination/v1"}},
		{"all shards", []string{module + "pkg/client/shards"}, []string{
			"github.com/kcp-dev/sdk/apis/core", "github.com/kcp-dev/sdk/apis/core/v1alpha1",
			// Dependencies of the kind Shard.
			"github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1", "github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions",
			"k8s.io/api/authentication/v1", "k8s.io/api/core/v1",
		}},
		{"Events", []string{module + "pkg/reconcile/events"}, []string{"k8s.io/api/core/v1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, test.packages...)...).Output()
			require.NoError(t, err)
			kinds := regexp.MustCompile(`(?m)^(k8s\.io/api|k8s\.io/apiextensions-apiserver|k8s\.io/apiserver|k8s\.io/client-go/kubernetes|github\.com/kcp-dev/sdk)/.*$`).FindAllString(string(out), -1)
			slices.Sort(kinds)
			require.Equal(t, test.kinds, kinds)
			for dep := range strings.FieldsSeq(string(out)) {
				if own, ok := strings.CutPrefix(dep, module); ok {
					require.Regexp(t, `^pkg/(client|reconcile|request|lifecycle)(/|$)`, own, "not public, or below it")
				}
			}
		})
	}
}
