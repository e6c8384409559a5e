// Package open is part of a fixture: its layer has no Only.
package open
