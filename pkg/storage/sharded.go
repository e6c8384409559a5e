package storage

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// retryAfterSeconds is the suggested delay after a wait for a future version has timed out.
const retryAfterSeconds = 1

// isSharded reports whether a request selects a range of the objects.
func isSharded(pred *storage.SelectionPredicate) bool {
	return pred.ShardSelector != nil && !pred.ShardSelector.Empty() &&
		utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch)
}

// strict fails a list if an object cannot be matched. etcd3 drops such an object silently, and the watch
// cache returns an error without its name.
type strict struct {
	err error
}

func (s *strict) fail(obj runtime.Object, err error) error {
	name := "an object"
	if object, metaErr := meta.Accessor(obj); metaErr == nil {
		name = fmt.Sprintf("%s/%s", object.GetNamespace(), object.GetName())
	}
	if err = fmt.Errorf("cannot match %s: %w", name, err); s.err == nil {
		s.err = err
	}
	return err
}

// strictSelector is a shard selector that records errors.
type strictSelector struct {
	sharding.Selector

	strict *strict
}

func (s strictSelector) Matches(obj runtime.Object) (bool, error) {
	matches, err := s.Selector.Matches(obj)
	if err != nil {
		err = s.strict.fail(obj, err)
	}
	return matches, err
}

// makeStrict makes the predicate record matching errors.
func makeStrict(pred *storage.SelectionPredicate) *strict {
	s := &strict{}
	if isSharded(pred) {
		pred.ShardSelector = strictSelector{pred.ShardSelector, s}
	}
	if getAttrs := pred.GetAttrs; getAttrs != nil {
		pred.GetAttrs = func(obj runtime.Object) (l labels.Set, f fields.Set, err error) {
			if l, f, err = getAttrs(obj); err != nil {
				err = s.fail(obj, err)
			}
			return l, f, err
		}
	}
	return s
}

func annotateShardInfo(obj runtime.Object, selector string) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("bookmark: %w", err)
	}
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[hashrange.InfoAnnotation] = selector
	object.SetAnnotations(annotations)
	return nil
}

// retrySoon adds a retry delay, which etcd3 omits, to the error for a version in the future.
func retrySoon(err error) error {
	var status *apierrors.StatusError
	if !storage.IsTooLargeResourceVersion(err) || !errors.As(err, &status) || status.ErrStatus.Details.RetryAfterSeconds != 0 {
		return err
	}
	retry, details := *status, *status.ErrStatus.Details
	details.RetryAfterSeconds = retryAfterSeconds
	retry.ErrStatus.Details = &details
	return &retry
}
