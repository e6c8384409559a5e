package versions

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// setShardInfo says in a list which part of the collection it is. The storage
// does so for typed lists, whose metadata knows the field.
func setShardInfo(list *unstructured.UnstructuredList, selector sharding.Selector) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) ||
		selector == nil || selector.Empty() {
		return
	}
	if list.Object == nil {
		list.Object = map[string]any{}
	}
	metadata, ok := list.Object["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		list.Object["metadata"] = metadata
	}
	metadata["shardInfo"] = map[string]any{"selector": selector.String()}
}
