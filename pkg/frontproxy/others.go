package frontproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

const (
	// askTimeout is how long one server may take to say which shards there are, and askInterval
	// the time before the next question when none has.
	askTimeout  = 5 * time.Second
	askInterval = time.Second
)

var errNoShards = errors.New("it knows no shards")

// others are clients of the shards of --other-shards.
type others []*client.Factory

func newOthers(urls []string, access *rest.Config) (others, error) {
	all := make(others, 0, len(urls))
	for _, url := range urls {
		config := rest.CopyConfig(access)
		config.Host = url
		factory, err := client.NewFactory(config)
		if err != nil {
			return nil, fmt.Errorf("--other-shards %s: %w", url, err)
		}
		all = append(all, factory)
	}
	return all, nil
}

// learn has the front-proxy begin with the Shard objects that another shard knows, if root does
// not answer and another one does. It returns when one of them has answered: without their
// answers there is nothing to serve. What root says when it is back counts.
func (o others) learn(ctx context.Context, root *client.Factory, shards *client.Informer[*corev1alpha1.Shard]) {
	if len(o) == 0 {
		return
	}
	logger := klog.FromContext(ctx)
	defer func() {
		for _, other := range o {
			other.CloseIdleConnections()
		}
	}()
	for {
		_, err := list(ctx, root.Cluster(core.RootCluster.Path()), metav1.ListOptions{Limit: 1})
		if err == nil {
			return
		}
		for _, other := range o {
			objects, failure := list(ctx, other.Admin(), metav1.ListOptions{})
			if failure == nil {
				failure = begin(shards, objects)
			}
			if failure == nil {
				logger.Info("Starting with the shards that another shard knows, since root does not answer", "url", other.Admin().Config().Host, "shards", len(objects), "err", err)
				return
			}
			err = errors.Join(err, fmt.Errorf("%s: %w", other.Admin().Config().Host, failure))
		}
		if ctx.Err() != nil {
			return
		}
		logger.Error(err, "Neither root nor another shard says which shards there are, trying again")
		select {
		case <-ctx.Done():
			return
		case <-time.After(askInterval):
		}
	}
}

// list returns the Shard objects that a server knows.
func list(ctx context.Context, at client.Scope, options metav1.ListOptions) ([]corev1alpha1.Shard, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	known, err := kinds.Shards.In(at).List(ctx, options)
	if err != nil {
		return nil, err
	}
	return known.Items, nil
}

// begin has an informer begin with Shard objects that another shard knows.
func begin(shards *client.Informer[*corev1alpha1.Shard], objects []corev1alpha1.Shard) error {
	if len(objects) == 0 {
		return errNoShards
	}
	saved := make([]json.RawMessage, len(objects))
	for i := range objects {
		objects[i].ResourceVersion = "" // that shard's own
		text, err := json.Marshal(&objects[i])
		if err != nil {
			return fmt.Errorf("encoding a Shard object: %w", err)
		}
		saved[i] = text
	}
	return shards.Restore(saved)
}
