package customresource

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// setShardInfo says in a list which part of the collection it is. The storage
// does so for typed lists, whose metadata knows the field.
func setShardInfo(list *unstructured.UnstructuredList, predicate storage.SelectionPredicate) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) ||
		predicate.ShardSelector == nil || predicate.ShardSelector.Empty() {
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
	metadata["shardInfo"] = map[string]any{"selector": predicate.ShardSelector.String()}
}
