package replicationcheckpoints

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// FuzzCheckpoint: arbitrary checkpoints can be read. Invalid versions are ignored, so that no cache is considered complete
// because of them.
func FuzzCheckpoint(f *testing.F) {
	for _, seed := range []string{
		`{"epoch":"0197d3a1-0c5e-7000-8000-000000000000","number":3,"resources":{"shards.core.kcp.io":{"resourceVersion":"17","count":2,"digest":"0f"}},"via":["eu","global"]}`,
		`{"resources":{"a":{"resourceVersion":"017"},"b":{"resourceVersion":""},"c":{"resourceVersion":"-1"},"d":{"resourceVersion":"99999999999999999999"},"e":{"resourceVersion":"zzz"}}}`,
		`{"epoch":"x","number":-9223372036854775808,"resources":null,"via":[]}`,
		`{"resources":[]}`, `[]`, `{`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, written []byte) {
		var checkpoint ReplicationCheckpoint
		if json.Unmarshal(written, &checkpoint) != nil {
			return
		}
		read := checkpoint.Comparable()
		require.Equal(t, checkpoint.Epoch, read.Epoch)
		require.Equal(t, len(checkpoint.Via) > 0, read.Partial)
		for resource, extent := range checkpoint.Resources {
			version, compared := read.Versions[resource]
			order, err := resourceversion.CompareResourceVersion(extent.ResourceVersion, "1")
			require.Equal(t, err == nil, compared, "%q", extent.ResourceVersion)
			require.True(t, !compared || version == extent.ResourceVersion && order >= 0, "%q", version)
		}
		require.LessOrEqual(t, len(read.Versions), len(checkpoint.Resources))

		copied, _ := checkpoint.DeepCopyObject().(*ReplicationCheckpoint)
		before, err := json.Marshal(copied)
		require.NoError(t, err)
		clear(checkpoint.Resources)
		for n := range checkpoint.Via {
			checkpoint.Via[n] = "another"
		}
		after, err := json.Marshal(copied)
		require.NoError(t, err)
		require.Equal(t, before, after)
	})
}
