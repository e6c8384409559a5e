package bindings

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// providerLabel is on BoundSchemas: the logical cluster of the original.
	providerLabel = apis.InternalGroup + "/provider"
	// bytesAnnotation is on BoundSchemas: how long their spec is, with the conversion.
	bytesAnnotation = apis.InternalGroup + "/bytes"
	// maxProviderBytes is how much the copies of one provider's schemas may take, which
	// do not count as what the provider stores. It is a thousand large ones.
	maxProviderBytes = 256 << 20
)

// room marks a copy that is about to be made with whose it is and how large. Its error,
// which wraps apis.ErrNoRoom, says that the provider has too many.
func (x *Index) room(ctx context.Context, copied *BoundSchema) error {
	provider := logicalcluster.Name(copied.Provider)
	if request.IsSystem(provider) {
		return nil
	}
	size, err := sizeOf(copied)
	if err != nil {
		return err
	}
	copied.Labels = map[string]string{providerLabel: copied.Provider}
	copied.Annotations = map[string]string{bytesAnnotation: strconv.FormatInt(size, 10)}

	metadata, err := x.config.Local.Cluster(tenancy.AdminCluster.Path()).Metadata()
	if err != nil {
		return err
	}
	others, err := metadata.Resource(BoundSchemas.GroupVersionResource).List(ctx, metav1.ListOptions{LabelSelector: providerLabel + "=" + copied.Provider})
	if err != nil {
		return fmt.Errorf("listing the copies of the APIResourceSchemas of %s: %w", provider, err)
	}
	sum := size
	for i := range others.Items {
		if other := &others.Items[i]; other.Name != copied.Name {
			bytes, _ := strconv.ParseInt(other.Annotations[bytesAnnotation], 10, 64)
			sum += bytes
		}
	}
	if sum > maxProviderBytes {
		return fmt.Errorf("%w: with it the APIResourceSchemas of logical cluster %s that were bound on this shard would be %d bytes, and may be %d: those that nobody binds any more are forgotten after %s",
			apis.ErrNoRoom, provider, sum, int64(maxProviderBytes), unusedFor)
	}
	return nil
}

// sizeOf returns how long what a copy says is, in bytes.
func sizeOf(copied *BoundSchema) (int64, error) {
	spec, err := json.Marshal(copied.Spec)
	if err != nil {
		return 0, fmt.Errorf("encoding the APIResourceSchema %s: %w", copied.Original, err)
	}
	conversion, err := json.Marshal(copied.Conversion)
	if err != nil {
		return 0, fmt.Errorf("encoding the APIConversion %s: %w", copied.Original, err)
	}
	return int64(len(spec) + len(conversion)), nil
}

// FollowRoom has f told when copies of schemas have been deleted, until stop is called. f
// does not block.
func (x *Index) FollowRoom(f func()) (stop func()) {
	return x.roomier.Add(func(struct{}) { f() })
}
