"""Write what people read: status, conditions, diagnoses, Events. All of it can be made again from the intent."""
