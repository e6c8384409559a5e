package load

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// ListOptions say how Lists reads a population.
type ListOptions struct {
	// Repeat is how often each list is read.
	Repeat int
	// PageSize is the limit of the lists in pages.
	PageSize int64
	// Timeout bounds the whole.
	Timeout time.Duration
}

// Lists reads all ConfigMaps of a shard, or of a server without logical
// clusters, whole and in pages, and those of one logical cluster among them.
func Lists(ctx context.Context, target Target, p Population, o ListOptions) ([]measure.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	all, err := target.In("*").client()
	if err != nil {
		return nil, err
	}
	one, err := places(target, p.Clusters[:1])
	if err != nil {
		return nil, err
	}
	selector := benchLabel + "=" + p.Run
	inOne := (p.Objects + len(p.Clusters) - 1) / len(p.Clusters)
	var results []measure.Result
	for _, list := range []struct {
		name      string
		client    *kubernetes.Clientset
		namespace string
		options   metav1.ListOptions
		want      int
	}{
		{"list all, consistent", all, "", metav1.ListOptions{}, p.Objects},
		{"list all, from cache", all, "", metav1.ListOptions{ResourceVersion: "0"}, p.Objects},
		{fmt.Sprintf("list all, pages of %d", o.PageSize), all, "", metav1.ListOptions{Limit: o.PageSize}, p.Objects},
		{"list all, by label", all, "", metav1.ListOptions{LabelSelector: selector}, p.Objects},
		{"list one cluster's", one[0].client, one[0].namespace, metav1.ListOptions{}, inOne},
	} {
		var recorder measure.Recorder
		for range o.Repeat {
			var got int
			err := recorder.Time(func() (err error) {
				got, err = readList(ctx, list.client, list.namespace, list.options)
				return err
			})
			if err != nil {
				return results, fmt.Errorf("%s at %s: %w", list.name, target.Name, err)
			}
			if got < list.want {
				return results, fmt.Errorf("%s at %s: got %d objects, there are %d", list.name, target.Name, got, list.want)
			}
		}
		result := recorder.Median(list.name, target.Name)
		result.Note = fmt.Sprintf("%d objects", list.want)
		results = append(results, result)
	}
	return results, nil
}

// readList reads a list to its end and returns the number of objects.
func readList(ctx context.Context, client *kubernetes.Clientset, namespace string, options metav1.ListOptions) (int, error) {
	count := 0
	for {
		var list *corev1.ConfigMapList
		list, err := client.CoreV1().ConfigMaps(namespace).List(ctx, options)
		if err != nil {
			return count, err
		}
		count += len(list.Items)
		if list.Continue == "" {
			return count, nil
		}
		options.Continue = list.Continue
	}
}
