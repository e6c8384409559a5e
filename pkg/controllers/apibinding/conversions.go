package apibinding

import (
	"context"
	"errors"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
)

// ConvertingName is the name of the controller that has bound APIs follow APIConversions.
const ConvertingName = "apiconversion"

// Converting is what the controller of conversions needs.
type Converting struct {
	// Local reaches the shard itself as system:masters, and Cache the cache server, which
	// has the schemas of other shards; it may be nil.
	Local, Cache *client.Factory
	// Conversions are those of all logical clusters, of other shards too.
	Conversions *replicas.Dual[*apisv1alpha1.APIConversion]
	// Convert has the shard's copy of a schema, if there is one, converted by rules. Its
	// error wraps apis.ErrInvalidSchema if the rules do not fit.
	Convert func(ctx context.Context, schema types.UID, rules *apisv1alpha1.APIConversionSpec) error
}

// NewConverting returns a controller that brings what APIConversions say to the copies of
// the schemas of their names. When one is deleted its rules stay: what is bound goes on.
// Its keys are APIConversions.
func NewConverting(c Converting) *reconcile.Controller[client.Key] {
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      ConvertingName,
		Workers:   1,
		Reconcile: c.reconcile,
		Sources: []reconcile.Source[client.Key]{reconcile.FromInformer(c.Conversions, func(conversion *apisv1alpha1.APIConversion) []client.Key {
			return []client.Key{{Cluster: logicalcluster.From(conversion), Name: conversion.Name}}
		})},
	})
}

func (c Converting) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	conversion, err := c.Conversions.Get(key.Cluster, "", key.Name)
	if err != nil {
		if errors.Is(err, client.ErrIncomplete) {
			return reconcile.Result{Backoff: true}, nil
		}
		return reconcile.Result{}, ignoreNotFound(err)
	}
	key.Shard = conversion.Annotations[request.ShardAnnotation]
	schema, err := ReadSchema(ctx, c.Local, c.Cache, key)
	if apierrors.IsNotFound(err) && key.Shard != "" {
		return reconcile.Result{Backoff: true}, nil // the cache server may get it later
	}
	if err != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	err = c.Convert(ctx, schema.UID, &conversion.Spec)
	if errors.Is(err, apis.ErrInvalidSchema) {
		// It was there before its schema, or admission would have refused it.
		klog.FromContext(ctx).Error(err, "An APIConversion does not fit the schema of its name, which is served as before", "logicalCluster", key.Cluster, "name", key.Name)
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}
