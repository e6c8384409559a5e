package percluster

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

// Judge returns the logical cluster whose webhooks and policies judge a write, and the
// one that is written in. They are two for an API that is bound: its provider judges.
func Judge(ctx context.Context, a admission.Attributes) (judge, in logicalcluster.Name, err error) {
	if in, err = request.ClusterNameFrom(ctx); err != nil {
		return "", "", err
	}
	if provider := request.ProviderFrom(ctx); provider != "" {
		return provider, in, nil
	}
	return in, in, nil
}

// Tell has the object of a write say in which logical cluster it is, whatever the client
// has said, until undo is called: webhooks, and policies of another one, cannot know it
// else. What is stored says it anyway.
func AnnotateCluster(a admission.Attributes, in logicalcluster.Name) (undo func()) {
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return func() {} // there is no object, such as in a deletion: the old one says it
	}
	set := func(value string, ok bool) (before string, had bool) {
		annotations := object.GetAnnotations()
		before, had = annotations[logicalcluster.AnnotationKey]
		switch {
		case ok && annotations == nil:
			annotations = map[string]string{logicalcluster.AnnotationKey: value}
		case ok:
			annotations[logicalcluster.AnnotationKey] = value
		default:
			delete(annotations, logicalcluster.AnnotationKey)
		}
		if len(annotations) == 0 {
			annotations = nil
		}
		object.SetAnnotations(annotations)
		return before, had
	}
	before, had := set(in.String(), true)
	return func() { set(before, had) }
}
