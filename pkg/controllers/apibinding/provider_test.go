package apibinding

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/apis"
)

// TestProvider: a binding refers to the export for which it was authorized, even if another logical cluster gets the path.
func TestProvider(t *testing.T) {
	resolve := func(logicalcluster.Path, string) (logicalcluster.Name, error) { return "successor", nil }
	of := func(binding *apisv1alpha2.APIBinding) logicalcluster.Name {
		name, err := providerOf("consumer", binding, resolve)
		require.NoError(t, err)
		return name
	}
	binding := bindingTo("root:provider", "e", "b")
	binding.Labels = map[string]string{apis.ExportLabel: apis.ExportLabelValue("permitted", "e")}
	require.Empty(t, of(binding))
	binding.Labels[apis.ExportLabel] = apis.ExportLabelValue("successor", "e")
	require.Equal(t, logicalcluster.Name("successor"), of(binding))

	binding.Labels[apis.ExportLabel] = apis.ExportLabelValue("permitted", "e")
	binding.Status.APIExportClusterName = "permitted"
	require.Equal(t, logicalcluster.Name("permitted"), of(binding), "the recorded provider must not change")
	binding.Status.APIExportClusterName, binding.Spec.Reference.Export.Path = "", ""
	require.Equal(t, logicalcluster.Name("consumer"), of(binding))
}
