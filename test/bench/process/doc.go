// Package process starts the programs that are measured, as child processes,
// and reads how much memory a tree of processes takes.
package process
