package push

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// relayedFrom is a cache server with at most a checkpoint.
type relayedFrom struct {
	cp *replicationcheckpoints.ReplicationCheckpoint
}

// RoundTrip implements http.RoundTripper.
func (r *relayedFrom) RoundTrip(req *http.Request) (*http.Response, error) {
	code, response := http.StatusOK, any(r.cp)
	if name := path.Base(req.URL.Path); name != replicationcheckpoints.Name || r.cp == nil {
		status := apierrors.NewNotFound(schema.GroupResource{}, name).Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		code, response = http.StatusNotFound, status
	}
	body, err := json.Marshal(response)
	return modelResponse(req, code, io.NopCloser(bytes.NewReader(body))), err
}

// TestRemovedOnRelaySource checks that an object which is missing on the cache server that is relayed from was only
// deleted if that server has the same data and is complete.
func TestRemovedOnRelaySource(t *testing.T) {
	resource := replication.Resource{GroupVersionResource: corev1alpha1.SchemeGroupVersion.WithResource("shards")}
	checkpointOf := func(uid types.UID, epoch string, number int64, version string) *replicationcheckpoints.ReplicationCheckpoint {
		return &replicationcheckpoints.ReplicationCheckpoint{
			ObjectMeta: metav1.ObjectMeta{Name: replicationcheckpoints.Name, UID: uid}, Epoch: epoch, Number: number,
			Resources: map[string]replicationcheckpoints.Extent{resource.GroupResource().String(): {ResourceVersion: version}},
		}
	}
	origin, observed := checkpointOf("data", "1", 5, "20"), checkpointOf("data", "1", 8, "40")
	for name, c := range map[string]struct {
		cp                *replicationcheckpoints.ReplicationCheckpoint
		withoutCheckpoint bool // checkpoints do not contain the resource
		disconnected      bool
		absent, otherData bool
	}{
		"the latest data":                              {cp: observed, absent: true},
		"later data":                                   {cp: checkpointOf("data", "1", 9, "50"), absent: true},
		"unverified connection":                        {cp: observed, disconnected: true},
		"no checkpoint":                                {},
		"checkpoint of other data":                     {cp: checkpointOf("others", "1", 9, "50"), otherData: true},
		"checkpoint of a restored shard":               {cp: checkpointOf("data", "2", 9, "50"), otherData: true},
		"restored data":                                {cp: checkpointOf("data", "1", 7, "40"), otherData: true},
		"older data of the resource":                   {cp: checkpointOf("data", "1", 9, "30")},
		"data without the resource":                    {cp: checkpointOf("data", "1", 9, "")},
		"new data without checkpoints of the resource": {cp: checkpointOf("data", "1", minCheckpoints-1, ""), withoutCheckpoint: true},
		"old data without checkpoints of the resource": {cp: checkpointOf("data", "1", minCheckpoints, ""), withoutCheckpoint: true, absent: true},
	} {
		t.Run(name, func(t *testing.T) {
			from, err := client.NewFactory(&rest.Config{Host: "http://from", Transport: &relayedFrom{c.cp}})
			require.NoError(t, err)
			of := resource
			of.WithoutCheckpoint = c.withoutCheckpoint
			var ended error
			s := &session{
				replicas: &replicas{
					shared: &shared{config: Config{Local: from}}, resource: of,
					source: &source{upstream: &upstream{shard: "amber", client: checkpointClientOf(from)}, resource: of.GroupResource().String(), withoutCheckpoint: c.withoutCheckpoint},
				},
				origin: origin, checkRequested: make(chan struct{}, 1), end: func(err error) { ended = err },
			}
			s.source.observe(observed)
			s.source.updateHighest(observed)
			if c.disconnected {
				s.setUnconfirmed()
			}
			local, err := s.wanted(t.Context(), client.Key{Cluster: "root", Name: "one"})
			require.Nil(t, local)
			if c.absent {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, errSourceIncomplete)
			}
			if c.otherData {
				require.ErrorIs(t, ended, errOtherData)
			} else {
				require.NoError(t, ended)
			}
		})
	}
}
