package serving

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// The gates that servers set by themselves can be set otherwise. What reads all that is
// stored again and again is off.
func TestFeatureGates(t *testing.T) {
	for gate, on := range map[featuregate.Feature]bool{
		features.ShardedListAndWatch: true, features.WatchList: true, features.DetectCacheInconsistency: false,
	} {
		t.Run(string(gate), func(t *testing.T) {
			for _, other := range []featuregate.Feature{features.ShardedListAndWatch, features.WatchList, features.DetectCacheInconsistency} {
				// They are set back after the test.
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, other, utilfeature.DefaultFeatureGate.Enabled(other))
			}
			require.NoError(t, setFeatureGates(nil))
			require.Equal(t, on, utilfeature.DefaultFeatureGate.Enabled(gate))
			require.NoError(t, setFeatureGates(map[string]bool{string(gate): !on}))
			require.Equal(t, !on, utilfeature.DefaultFeatureGate.Enabled(gate))
		})
	}
}
