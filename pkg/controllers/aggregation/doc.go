// Package aggregation updates the rules of aggregated cluster roles: the rules of all matching cluster roles in the same
// logical cluster.
//
//	ClusterRole a, labelled ──┐
//	ClusterRole b, labelled ──┴─► ClusterRole with an aggregationRule: rules of a and b
package aggregation
